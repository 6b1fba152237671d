#include "client/normctl/load_schedule.h"

#include <algorithm>
#include <cmath>

namespace norm::normctl {

std::chrono::nanoseconds OpenLoopSchedule::IntendedAt(int64_t index) const {
  return std::chrono::nanoseconds(std::llround(static_cast<double>(index) * 1e9 / rate_));
}

int64_t OpenLoopSchedule::FirstAtOrAfter(std::chrono::nanoseconds time) const {
  // The estimate is off by rounding only: it starts below and ends after a few steps.
  const auto estimate = static_cast<int64_t>(static_cast<double>(time.count()) * 1e-9 * rate_);
  int64_t index = std::max<int64_t>(0, estimate - 1);
  while (IntendedAt(index) < time) ++index;
  return index;
}

int64_t OpenLoopSchedule::RequestsIn(std::chrono::nanoseconds begin,
                                     std::chrono::nanoseconds end) const {
  return FirstAtOrAfter(end) - FirstAtOrAfter(begin);
}

}  // namespace norm::normctl
