#include "server/device/memory_waitlist.h"

#include "absl/cleanup/cleanup.h"

namespace norm::server {

void MemoryWaitlist::Hold::Reset() {
  if (MemoryWaitlist* const list = std::exchange(list_, nullptr)) {
    list->EndHolding();
  }
}

absl::StatusOr<MemoryWaitlist::Hold> MemoryWaitlist::Lease(absl::FunctionRef<absl::Status()> lease,
                                                           bool may_wait) {
  if (!may_wait || waiting() == 0) {
    // Held while it tries: another may miss what a try that fails had for a moment.
    Hold hold = BeginHolding();
    absl::Status status = lease();
    if (status.ok()) {
      return hold;
    }
    if (!may_wait || !absl::IsUnavailable(status)) {
      return status;
    }
  }
  return WaitAndLease(lease);
}

absl::StatusOr<MemoryWaitlist::Hold> MemoryWaitlist::WaitAndLease(
    absl::FunctionRef<absl::Status()> lease) {
  AddWaiting(1);
  const absl::Cleanup leave = [this] { AddWaiting(-1); };
  std::lock_guard turn(turn_);
  while (true) {
    // Before it tries: what is given back meanwhile is tried for again.
    const int64_t seen = releases();
    absl::Status status = lease();
    if (status.ok()) {
      return BeginHolding();
    }
    if (!absl::IsUnavailable(status)) {
      return status;
    }
    std::unique_lock lock(mutex_);
    if (releases_ == seen && holders_ == 0) {
      return status;
    }
    while (releases_ == seen) {
      released_.wait(lock);
    }
  }
}

MemoryWaitlist::Hold MemoryWaitlist::BeginHolding() {
  std::lock_guard lock(mutex_);
  ++holders_;
  return Hold(this);
}

void MemoryWaitlist::EndHolding() {
  {
    std::lock_guard lock(mutex_);
    --holders_;
    ++releases_;
  }
  released_.notify_all();
}

int64_t MemoryWaitlist::waiting() {
  std::lock_guard lock(mutex_);
  return waiting_;
}

void MemoryWaitlist::AddWaiting(int64_t count) {
  std::lock_guard lock(mutex_);
  waiting_ += count;
}

int64_t MemoryWaitlist::releases() {
  std::lock_guard lock(mutex_);
  return releases_;
}

}  // namespace norm::server
