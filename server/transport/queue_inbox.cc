#include "server/transport/queue_inbox.h"

#include <utility>

#include "grpc/support/time.h"

namespace norm::server {

void QueueInbox::Post(CompletionEvent* event) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(event);
    if (std::exchange(waking_, true)) return;
  }
  Wake();
}

void QueueInbox::Wake() {
  alarm_.Set(&queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<CompletionEvent*>(this));
}

void QueueInbox::Complete(bool) {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(posted_);
  }
  for (CompletionEvent* event : taken_) event->Complete(true);
  taken_.clear();
  {
    const std::lock_guard lock(mutex_);
    if (posted_.empty()) {
      waking_ = false;
      return;
    }
  }
  // Behind what has come to the queue meanwhile.
  Wake();
}

}  // namespace norm::server
