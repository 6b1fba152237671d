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
/// batch are sent by the threads of the queues that their calls came from, for one wake-up a queue.
///
/// Ownership:  borrows the queue. Every posted event must have completed before the queue is shut
///             down; destroyed after the queue's thread has ended and every Post has returned.
/// Threads:    Post from any.
class QueueInbox final : private CompletionEvent {
 public:
  explicit QueueInbox(grpc::CompletionQueue& queue) : queue_(queue) {}
  QueueInbox(const QueueInbox&) = delete;
  QueueInbox& operator=(const QueueInbox&) = delete;

  /// The queue's thread calls event->Complete(true) soon; events of one thread stay in order.
  void Post(CompletionEvent* event) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Complete(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake();

  grpc::CompletionQueue& queue_;
  grpc::Alarm alarm_;  // used by whoever set waking_, then by Complete
  std::mutex mutex_;
  bool waking_ ABSL_GUARDED_BY(mutex_) = false;  // the alarm is set, or Complete runs
  std::vector<CompletionEvent*> posted_ ABSL_GUARDED_BY(mutex_);
  // Of Complete: two vectors in turn, so that neither allocates for long.
  std::vector<CompletionEvent*> taken_;
};

}  // namespace norm::server
