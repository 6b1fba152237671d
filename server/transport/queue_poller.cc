#include "server/transport/queue_poller.h"

#include <chrono>
#include <vector>

#include "grpc/support/time.h"

namespace norm::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// An event that was there so soon after the ones before had lain in the queue.
constexpr std::chrono::microseconds kNoWait(5);
/// Events that are completed between two looks at the queue, and taken from it by one.
constexpr int kCompletedAtATime = 8;
constexpr int kTakenAtATime = 256;

thread_local bool polls_queue = false;

class Poller {
 public:
  Poller(grpc::CompletionQueue& queue, QueueInbox& inbox) : queue_(queue), inbox_(inbox) {}

  void Run() {
    void* tag = nullptr;
    bool ok = false;
    while (true) {
      TakePosted();
      if (turns_.empty()) {
        if (!inbox_.MaySleep()) continue;
        const auto idle_since = SteadyClock::now();
        const bool open = queue_.Next(&tag, &ok);
        inbox_.OnAwake(open ? tag : nullptr);
        if (!open) return;
        Add(tag, ok);
        // A look takes about as long as a small event: not for one that found the thread idle.
        if (SteadyClock::now() - idle_since < kNoWait) TakeWaiting();
      } else {
        TakeWaiting();
      }
      for (int i = 0; i < kCompletedAtATime && !turns_.empty(); ++i) turns_.CompleteNext();
    }
  }

 private:
  void Add(void* tag, bool ok) {
    if (tag != &inbox_) turns_.Add(static_cast<CompletionEvent*>(tag), ok);
  }

  void TakePosted() {
    inbox_.Take(&posted_);
    for (CompletionEvent* event : posted_) turns_.Add(event, true);
    posted_.clear();
  }

  /// Takes what lies in the queue. That it is shut down is for Next to say.
  void TakeWaiting() {
    void* tag = nullptr;
    bool ok = false;
    for (int i = 0; i < kTakenAtATime; ++i) {
      const auto next = queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
      if (next != grpc::CompletionQueue::GOT_EVENT) return;
      inbox_.OnAwake(tag);
      Add(tag, ok);
    }
  }

  grpc::CompletionQueue& queue_;
  QueueInbox& inbox_;
  EventTurns turns_;
  std::vector<CompletionEvent*> posted_;
};

}  // namespace

void EventTurns::Add(CompletionEvent* event, bool ok) {
  const uint64_t flow = event->flow();
  Events& events = flows_[flow];
  if (events.empty()) turns_.push_back(flow);
  events.emplace_back(event, ok);
}

void EventTurns::CompleteNext() {
  const uint64_t flow = turns_.front();
  turns_.pop_front();
  const auto found = flows_.find(flow);
  const auto [event, ok] = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) {
    flows_.erase(found);
  } else {
    turns_.push_back(flow);
  }
  event->Complete(ok);
}

void PollQueue(grpc::CompletionQueue& queue, QueueInbox& inbox) {
  polls_queue = true;
  Poller(queue, inbox).Run();
  polls_queue = false;
}

bool PollsQueue() { return polls_queue; }

}  // namespace norm::server
