// Percentiles of latencies, exact.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

namespace norm::normctl {

/// Each percentile is one of the samples: the smallest that at least that share of all samples does
/// not exceed (nearest rank).
struct LatencySummary {
  std::chrono::nanoseconds mean{0};  // rounded to the nearest
  std::chrono::nanoseconds p50{0};
  std::chrono::nanoseconds p90{0};
  std::chrono::nanoseconds p99{0};
  std::chrono::nanoseconds p99_9{0};
  std::chrono::nanoseconds max{0};
};

/// Absent without samples.
std::optional<LatencySummary> Summarize(std::vector<std::chrono::nanoseconds> samples);

}  // namespace norm::normctl
