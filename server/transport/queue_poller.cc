#include "server/transport/queue_poller.h"

#include <chrono>
#include <optional>

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

/// Takes what lies in the queue. That it is shut down is for Next to say.
void TakeWaiting(grpc::CompletionQueue& queue, QueueInbox& inbox) {
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < kTakenAtATime; ++i) {
    const auto next = queue.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (next != grpc::CompletionQueue::GOT_EVENT) return;
    inbox.Add(tag, ok);
  }
}

void Poll(grpc::CompletionQueue& queue, QueueInbox& inbox) {
  void* tag = nullptr;
  bool ok = false;
  int completed = 0;
  while (true) {
    const std::optional<EventTurns::Event> next = inbox.TakeOrSleep();
    if (next.has_value()) {
      next->event->Complete(next->ok);
      if (++completed % kCompletedAtATime == 0) TakeWaiting(queue, inbox);
      continue;
    }
    const auto idle_since = SteadyClock::now();
    const bool open = queue.Next(&tag, &ok);
    inbox.OnAwake();
    if (!open) return;
    inbox.Add(tag, ok);
    completed = 0;
    // A look takes about as long as a small event: not for one that found the thread idle.
    if (SteadyClock::now() - idle_since < kNoWait) TakeWaiting(queue, inbox);
  }
}

}  // namespace

void PollQueue(grpc::CompletionQueue& queue, QueueInbox& inbox) {
  polls_queue = true;
  Poll(queue, inbox);
  polls_queue = false;
}

bool PollsQueue() { return polls_queue; }

}  // namespace norm::server
