#include "server/transport/queue_inbox.h"

#include <utility>

#include "grpc/support/time.h"

namespace norm::server {

void QueueInbox::Post(CompletionEvent* event) {
  // Over the alarm too: once the event can be taken, its call may end, and with the last call the
  // queue, which takes no alarm then.
  const std::lock_guard lock(mutex_);
  posted_.push_back(event);
  if (asleep_ && !std::exchange(alarm_set_, true)) {
    alarm_.Set(&queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), this);
  }
}

void QueueInbox::Take(std::vector<CompletionEvent*>* events) {
  const std::lock_guard lock(mutex_);
  events->insert(events->end(), posted_.begin(), posted_.end());
  posted_.clear();
}

bool QueueInbox::MaySleep() {
  const std::lock_guard lock(mutex_);
  asleep_ = posted_.empty();
  return asleep_;
}

void QueueInbox::OnAwake(const void* tag) {
  const std::lock_guard lock(mutex_);
  asleep_ = false;
  if (tag == this) alarm_set_ = false;
}

}  // namespace norm::server
