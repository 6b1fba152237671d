#include "client/normctl/latency_summary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace norm::normctl {

std::optional<LatencySummary> Summarize(std::vector<std::chrono::nanoseconds> samples) {
  if (samples.empty()) return std::nullopt;
  std::sort(samples.begin(), samples.end());
  // Whole thousandths: the rank is the exact ceiling, at least 1.
  const auto at = [&samples](size_t per_mille) {
    return samples[(samples.size() * per_mille + 999) / 1000 - 1];
  };
  std::chrono::nanoseconds sum{0};
  for (const std::chrono::nanoseconds sample : samples) sum += sample;
  const std::chrono::nanoseconds mean(
      std::llround(static_cast<double>(sum.count()) / static_cast<double>(samples.size())));
  return LatencySummary{.mean = mean,
                        .p50 = at(500),
                        .p90 = at(900),
                        .p99 = at(990),
                        .p99_9 = at(999),
                        .max = samples.back()};
}

}  // namespace norm::normctl
