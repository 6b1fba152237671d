// Hands events from other threads to the thread of a completion queue.
#pragma once

#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "grpcpp/alarm.h"
#include "grpcpp/completion_queue.h"
#include "server/transport/call.h"

namespace norm::server {

/// Whoever finishes a call runs gRPC's write and with it the kernel's whole TCP path, 10 us for
/// 32 KiB: one thread that completes batches would send for everyone. Posted, the responses of a
/// batch are sent by the threads of the queues that their calls came from, for one wake-up of each
/// that sleeps.
///
/// Ownership:  borrows the queue. Every posted event must have been taken before the queue is shut
///             down; destroyed after the queue's thread has ended and every Post has returned.
/// Threads:    Post from any; the rest from the queue's.
class QueueInbox {
 public:
  explicit QueueInbox(grpc::CompletionQueue& queue) : queue_(queue) {}
  QueueInbox(const QueueInbox&) = delete;
  QueueInbox& operator=(const QueueInbox&) = delete;

  /// The queue's thread takes it soon; events of one thread stay in order.
  void Post(CompletionEvent* event) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Moves what was posted to the end of `events`.
  void Take(std::vector<CompletionEvent*>* events) ABSL_LOCKS_EXCLUDED(mutex_);
  /// From now on a Post wakes the thread, with `this` as tag, until OnAwake. False when something
  /// is posted already.
  bool MaySleep() ABSL_LOCKS_EXCLUDED(mutex_);
  /// The thread is awake, and `tag` has come from the queue (null: none, it is shut down).
  void OnAwake(const void* tag) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  grpc::CompletionQueue& queue_;
  grpc::Alarm alarm_;  // used by whoever set alarm_set_
  std::mutex mutex_;
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
  bool alarm_set_ ABSL_GUARDED_BY(mutex_) = false;  // its tag has not come yet
  std::vector<CompletionEvent*> posted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::server
