// When the requests of an open loop are meant to leave.
#pragma once

#include <chrono>
#include <cstdint>

namespace norm::normctl {

/// Request `index` is meant to leave index / rate after the start, however late the ones before it
/// are: a latency counted from there contains the wait that a slow server caused.
class OpenLoopSchedule {
 public:
  explicit OpenLoopSchedule(double requests_per_second) : rate_(requests_per_second) {}

  /// Rounded to the nearest nanosecond; ascending with `index`.
  std::chrono::nanoseconds IntendedAt(int64_t index) const;

  /// The first request that is meant to leave at `time` (0 or more) or later.
  int64_t FirstAtOrAfter(std::chrono::nanoseconds time) const;

  /// How many requests are meant to leave in [begin, end); 0 <= begin <= end.
  int64_t RequestsIn(std::chrono::nanoseconds begin, std::chrono::nanoseconds end) const;

 private:
  double rate_;
};

}  // namespace norm::normctl
