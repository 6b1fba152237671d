// The counters behind Metrics and their translation to Prometheus families. Included by this room
// only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Codes a request can end with, and a last one for all others. Labels are gRPC's spelling.
inline constexpr std::array<absl::StatusCode, 8> kCountedCodes = {
    absl::StatusCode::kOk,
    absl::StatusCode::kCancelled,
    absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kUnimplemented,
    absl::StatusCode::kInternal,
    absl::StatusCode::kUnavailable,
};
inline constexpr size_t kCodeSlots = kCountedCodes.size() + 1;
inline constexpr size_t kOpDirections = kOpCount * kDirectionCount;
inline constexpr size_t kKinds = kOpDirections * kDTypeCount;

/// 10 us to 10 s, six bounds per decade: a quantile read from a bucket is off by less than a factor
/// of two.
inline constexpr std::array<double, 37> kLatencyBounds = {
    1e-5,   1.5e-5, 2e-5, 3e-5, 4e-5, 5e-5,  1e-4,   1.5e-4, 2e-4, 3e-4, 4e-4, 5e-4, 1e-3,
    1.5e-3, 2e-3,   3e-3, 4e-3, 5e-3, 1e-2,  1.5e-2, 2e-2,   3e-2, 4e-2, 5e-2, 1e-1, 1.5e-1,
    2e-1,   3e-1,   4e-1, 5e-1, 1e0,  1.5e0, 2e0,    3e0,    4e0,  5e0,  10};
inline constexpr std::array<double, 11> kBatchRequestBounds = {1,  2,   4,   8,   16,  32,
                                                               64, 128, 256, 512, 1024};
inline constexpr std::array<double, 13> kBatchRowBounds = {
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};
inline constexpr std::array<double, 14> kRatioBounds = {0.05, 0.1, 0.2,  0.3, 0.4,  0.5, 0.6,
                                                        0.7,  0.8, 0.85, 0.9, 0.95, 1.0, 1.1};

/// A histogram with fixed bounds. Observe is two relaxed additions.
template <size_t kBounds>
class AtomicHistogram {
 public:
  explicit AtomicHistogram(const std::array<double, kBounds>& bounds) : bounds_(&bounds) {}

  void Observe(double value) {
    size_t bucket = 0;
    while (bucket < kBounds && value > (*bounds_)[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  prometheus::ClientMetric::Histogram Read() const {
    prometheus::ClientMetric::Histogram histogram;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < kBounds; ++i) {
      cumulative += counts_[i].load(std::memory_order_relaxed);
      histogram.bucket.push_back({cumulative, (*bounds_)[i]});
    }
    cumulative += counts_[kBounds].load(std::memory_order_relaxed);
    histogram.sample_count = cumulative;
    histogram.sample_sum = sum_.load(std::memory_order_relaxed);
    return histogram;
  }

 private:
  const std::array<double, kBounds>* bounds_;
  std::array<std::atomic<uint64_t>, kBounds + 1> counts_{};
  std::atomic<double> sum_{0.0};
};

struct LatencyHistogram : AtomicHistogram<kLatencyBounds.size()> {
  LatencyHistogram() : AtomicHistogram(kLatencyBounds) {}
};

using Counter = std::atomic<uint64_t>;
using Gauge = std::atomic<int64_t>;

/// Everything known about one device label.
struct DeviceCounters {
  std::array<Counter, kKinds> executions{};
  std::array<Counter, kKinds> kernel_bytes{};
  std::array<Counter, kKinds> kernel_ns{};
  AtomicHistogram<kRatioBounds.size()> bandwidth_ratio{kRatioBounds};
  std::atomic<double> copy_bandwidth{0.0};
  Counter slot_busy_ns{0};
  Gauge pinned_used{0};
  Gauge pinned_free{0};
  Gauge pool_used{0};
  Gauge pool_free{0};
};

class Metrics::Impl : public prometheus::Collectable {
 public:
  Impl(std::vector<std::string> device_names, std::vector<std::string> close_reasons,
       BuildInfo build_info);

  /// Every series, in a fixed number: also those that are still zero.
  std::vector<prometheus::MetricFamily> Collect() const override;

  static size_t KindIndex(Op op, Direction direction, DType dtype) {
    return OpDirectionIndex(op, direction) * kDTypeCount + static_cast<size_t>(dtype);
  }
  static size_t OpDirectionIndex(Op op, Direction direction) {
    return static_cast<size_t>(op) * kDirectionCount + static_cast<size_t>(direction);
  }
  static size_t CodeIndex(absl::StatusCode code);

  const std::vector<std::string> device_names;
  const std::vector<std::string> close_reasons;
  const BuildInfo build;
  const double start_time_seconds;

  std::array<std::array<Counter, kCodeSlots>, kKinds> requests{};
  std::array<Counter, kDirectionCount> malformed{};
  std::array<LatencyHistogram, kOpDirections> request_seconds;
  std::array<LatencyHistogram, kStageCount> stage_seconds;
  AtomicHistogram<kBatchRequestBounds.size()> batch_requests{kBatchRequestBounds};
  AtomicHistogram<kBatchRowBounds.size()> batch_rows{kBatchRowBounds};
  std::vector<Counter> batch_close;
  Counter rows{0};
  std::array<Counter, kRejectReasonCount> rejected{};
  std::array<Counter, kStageCount> deadline_exceeded{};
  std::array<Counter, kStageCount> cancelled{};
  std::array<Counter, kTransportKindCount> bytes_in{};
  std::array<Counter, kTransportKindCount> bytes_out{};
  std::array<Counter, 2> cuda_errors{};  // [sticky]
  std::vector<std::unique_ptr<DeviceCounters>> devices;

  Gauge queue_requests{0};
  Gauge in_flight_requests{0};
  Gauge in_flight_bytes{0};
  Gauge in_flight_bytes_limit{0};
  Gauge streams{0};
  Gauge unsent_bytes{0};
  Counter write_timeouts{0};
  Gauge ready{0};
  Gauge draining{0};
};

}  // namespace norm::server
