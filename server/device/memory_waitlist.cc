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
  if (!may_wait || MayTryAtOnce()) {
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
  AwaitTurn();
  const absl::Cleanup end_turn = [this] { EndTurn(); };
  while (true) {
    const int64_t releases = BeginTry();
    absl::Status status = lease();
    if (status.ok()) {
      return BeginHolding();
    }
    if (!absl::IsUnavailable(status) || !AwaitRelease(releases)) {
      return status;
    }
  }
}

bool MemoryWaitlist::MayTryAtOnce() {
  std::lock_guard lock(mutex_);
  return turn_ == next_turn_ || trying_;
}

void MemoryWaitlist::AwaitTurn() {
  std::unique_lock lock(mutex_);
  const int64_t mine = next_turn_++;
  while (turn_ != mine) {
    changed_.wait(lock);
  }
}

void MemoryWaitlist::EndTurn() {
  {
    std::lock_guard lock(mutex_);
    ++turn_;
    trying_ = false;
  }
  changed_.notify_all();
}

int64_t MemoryWaitlist::BeginTry() {
  std::lock_guard lock(mutex_);
  trying_ = true;
  return releases_;
}

bool MemoryWaitlist::AwaitRelease(int64_t releases) {
  std::unique_lock lock(mutex_);
  trying_ = false;
  if (releases_ == releases && holders_ == 0) {
    return false;
  }
  while (releases_ == releases) {
    changed_.wait(lock);
  }
  return true;
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
  changed_.notify_all();
}

int64_t MemoryWaitlist::waiting() {
  std::lock_guard lock(mutex_);
  return next_turn_ - turn_;
}

}  // namespace norm::server
