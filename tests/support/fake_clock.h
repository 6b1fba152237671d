// A clock that moves when told to.
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/scheduler/clock.h"

namespace norm::test {

/// Threads: safe.
class FakeClock final : public server::Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000)) : now_(start) {}

  absl::Time Now() const override {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    std::lock_guard lock(mutex_);
    now_ += by;
  }

 private:
  mutable std::mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::test
