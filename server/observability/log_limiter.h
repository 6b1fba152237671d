// Keeps a line that anybody outside can cause from filling the log.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace norm::server {

/// Lets one line through in each interval and counts the others. Threads: safe.
class LogLimiter {
 public:
  explicit LogLimiter(absl::Duration interval) : interval_(interval) {}

  /// For a line at `now`: how many were held back since the last one that went through, or nothing
  /// when this one is held back too.
  std::optional<int64_t> Admit(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_) {
    const std::lock_guard lock(mutex_);
    if (now < next_) {
      ++held_back_;
      return std::nullopt;
    }
    next_ = now + interval_;
    const int64_t held_back = held_back_;
    held_back_ = 0;
    return held_back;
  }

 private:
  const absl::Duration interval_;
  std::mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t held_back_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace norm::server
