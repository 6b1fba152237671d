#include "server/transport/event_turns.h"

namespace norm::server {

void EventTurns::Add(Event event, uint64_t flow) {
  std::deque<Event>& events = flows_[flow];
  if (events.empty()) turns_.push_back(flow);
  events.push_back(event);
}

std::optional<EventTurns::Event> EventTurns::Take() {
  if (turns_.empty()) return std::nullopt;
  const uint64_t flow = turns_.front();
  turns_.pop_front();
  const auto found = flows_.find(flow);
  const Event next = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) {
    flows_.erase(found);
  } else {
    turns_.push_back(flow);
  }
  return next;
}

}  // namespace norm::server
