// The real clock, which a test may stop and set forward.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/scheduler/clock.h"

namespace norm::test {

/// Threads: safe. While closed, whoever reads the time waits: a thread is held where it does.
class GatedClock final : public server::Clock {
 public:
  absl::Time Now() const override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    opened_.wait(lock, [this] { return !closed_; });
    --waiting_;
    return absl::Now() + ahead_;
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    opened_.notify_all();
  }
  void Advance(absl::Duration by) {
    const std::lock_guard lock(mutex_);
    ahead_ += by;
  }
  int waiting() const {
    const std::lock_guard lock(mutex_);
    return closed_ ? waiting_ : 0;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable opened_;
  mutable int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration ahead_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::test
