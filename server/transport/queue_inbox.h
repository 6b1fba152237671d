// What the threads of a completion queue have still to complete, and who wakes them.
#pragma once

#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "grpcpp/alarm.h"
#include "grpcpp/completion_queue.h"
#include "server/transport/call.h"
#include "server/transport/event_turns.h"

namespace norm::server {

/// Whoever finishes a call runs gRPC's write and with it the kernel's whole TCP path, 10 us for
/// 32 KiB: one thread that completes batches would send for everyone. Posted, the responses of a
/// batch are sent by the threads of the queues that their calls came from.
///
/// Ownership:  borrows the queue. Every posted event must have been taken before the queue is shut
///             down; destroyed after the queue's threads have ended and every Post has returned.
/// Threads:    Post from any; the rest from the queue's, which take events in turns of flows.
class QueueInbox {
 public:
  explicit QueueInbox(grpc::CompletionQueue& queue) : queue_(queue) {}
  QueueInbox(const QueueInbox&) = delete;
  QueueInbox& operator=(const QueueInbox&) = delete;

  /// A thread of the queue takes it soon: of those that sleep in the queue one is woken.
  void Post(CompletionEvent* event) ABSL_LOCKS_EXCLUDED(mutex_);

  /// A tag that has come from the queue; its own ends the last Post's call for a thread.
  void Add(void* tag, bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The event whose turn it is. With none, the caller counts as asleep until OnAwake, and may wait
  /// in the queue.
  std::optional<EventTurns::Event> TakeOrSleep() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAwake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  grpc::CompletionQueue& queue_;
  grpc::Alarm alarm_;  // used by whoever set alarm_set_
  std::mutex mutex_;
  EventTurns turns_ ABSL_GUARDED_BY(mutex_);
  int asleep_ ABSL_GUARDED_BY(mutex_) = 0;
  bool alarm_set_ ABSL_GUARDED_BY(mutex_) = false;  // its tag has not come yet
};

}  // namespace norm::server
