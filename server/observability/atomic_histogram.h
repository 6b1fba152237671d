// Counters that threads add to without a lock, and histograms of them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "prometheus/client_metric.h"

namespace norm::server {

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free);

inline uint64_t Read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

/// A histogram with fixed bounds. Observe is two additions of integers; the sum is kept in steps of
/// 1 / kStepsPerUnit.
template <const auto& kBounds, int64_t kStepsPerUnit>
class AtomicHistogram {
 public:
  void Observe(double value) {
    counts_[Bucket(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(static_cast<uint64_t>(std::max(0.0, value) * kStepsPerUnit),
                   std::memory_order_relaxed);
  }

  /// Adds this histogram to `total`, which is empty or of the same bounds.
  void AddTo(prometheus::ClientMetric::Histogram& total) const {
    if (total.bucket.empty()) {
      for (const double bound : kBounds) total.bucket.push_back({0, bound});
    }
    uint64_t cumulative = 0;
    for (size_t i = 0; i < kBounds.size(); ++i) {
      cumulative += Read(counts_[i]);
      total.bucket[i].cumulative_count += cumulative;
    }
    total.sample_count += cumulative + Read(counts_[kBounds.size()]);
    total.sample_sum += static_cast<double>(Read(sum_)) / kStepsPerUnit;
  }

 private:
  /// The power of two at or below a positive value.
  static constexpr int Power(double value) {
    return static_cast<int>(std::bit_cast<uint64_t>(value) >> 52U) - 1023;
  }
  static constexpr int kLowest = Power(kBounds.front());
  static constexpr int kPowers = Power(kBounds.back()) - kLowest + 2;  // the last holds no bound

  /// For each power of two how many bounds are below it: what is in it needs few steps from there.
  static constexpr std::array<uint8_t, kPowers> kBelow = [] {
    std::array<uint8_t, kPowers> below{};
    for (const double bound : kBounds) {
      for (int power = Power(bound) + 1; power < kLowest + kPowers; ++power)
        ++below[static_cast<size_t>(power - kLowest)];
    }
    return below;
  }();

  /// The first bound that is not below the value.
  static size_t Bucket(double value) {
    if (value <= kBounds.front()) return 0;
    size_t bucket = kBelow[static_cast<size_t>(std::min(Power(value) - kLowest, kPowers - 1))];
    while (bucket < kBounds.size() && kBounds[bucket] < value) ++bucket;
    return bucket;
  }

  std::array<Counter, kBounds.size() + 1> counts_{};
  Counter sum_{0};
};

}  // namespace norm::server
