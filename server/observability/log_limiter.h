// Keeps a line that anybody outside can cause from filling the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace norm::server {

/// Lets one line through in each interval and counts the others. Threads: safe, and waits for nobody:
/// requests are refused in great numbers.
class LogLimiter {
 public:
  explicit LogLimiter(absl::Duration interval = absl::Seconds(1))
      : interval_us_(absl::ToInt64Microseconds(interval)) {}

  /// For a line at `now`: how many were held back since the last one that went through, or nothing
  /// when this one is held back too.
  std::optional<int64_t> Admit(absl::Time now) {
    const int64_t now_us = absl::ToUnixMicros(now);
    int64_t next_us = next_us_.load(std::memory_order_relaxed);
    const bool early = now_us < next_us && next_us - now_us <= interval_us_;  // else set back
    if (early || !next_us_.compare_exchange_strong(next_us, now_us + interval_us_)) {
      held_back_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    return held_back_.exchange(0, std::memory_order_relaxed);
  }

 private:
  const int64_t interval_us_;
  std::atomic<int64_t> next_us_{std::numeric_limits<int64_t>::min()};
  std::atomic<int64_t> held_back_{0};
};

}  // namespace norm::server
