#include "server/transport/queue_inbox.h"

#include <utility>

#include "grpc/support/time.h"

namespace norm::server {

void QueueInbox::Post(CompletionEvent* event) {
  const uint64_t flow = event->flow();
  {
    const std::lock_guard lock(mutex_);
    turns_.Add({event, true}, flow);
    if (asleep_ == 0 || std::exchange(alarm_set_, true)) return;
  }
  alarm_.Set(&queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), this);
}

void QueueInbox::Add(void* tag, bool ok) {
  if (tag == this) {
    const std::lock_guard lock(mutex_);
    alarm_set_ = false;
    return;
  }
  auto* const event = static_cast<CompletionEvent*>(tag);
  const uint64_t flow = event->flow();
  const std::lock_guard lock(mutex_);
  turns_.Add({event, ok}, flow);
}

std::optional<EventTurns::Event> QueueInbox::TakeOrSleep() {
  const std::lock_guard lock(mutex_);
  std::optional<EventTurns::Event> next = turns_.Take();
  if (!next.has_value()) ++asleep_;
  return next;
}

void QueueInbox::OnAwake() {
  const std::lock_guard lock(mutex_);
  --asleep_;
}

}  // namespace norm::server
