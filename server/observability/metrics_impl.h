// The counters behind Metrics and their translation to Prometheus families. Included by this room
// only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/observability/atomic_histogram.h"
#include "server/observability/gpu_poller.h"
#include "server/observability/metrics.h"
#include "server/observability/recent_errors.h"

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
inline constexpr std::array<const char*, kStageCount> kStageNames = {
    "decode", "queue", "copy_in", "kernel", "copy_out", "encode", "send"};
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

using Gauge = std::atomic<int64_t>;
static_assert(Gauge::is_always_lock_free);

using LatencyHistogram = AtomicHistogram<kLatencyBounds, 1'000'000'000>;

/// 0, 1, 2, ... in the order in which threads first ask.
size_t ThreadNumber();

/// One T for each of a few groups of threads, in cache lines of its own: threads of different groups
/// do not wait for each other's writes.
template <typename T>
class Sharded {
 public:
  /// The calling thread's.
  T& mine() { return shards_[Group()].value; }

  /// What `of(shard)` points to, added up over the shards: a Counter, or a histogram.
  template <typename Of>
  uint64_t Sum(Of of) const {
    uint64_t sum = 0;
    for (const Aligned& shard : shards_) sum += Read(*of(shard.value));
    return sum;
  }
  template <typename Of>
  prometheus::ClientMetric::Histogram SumHistogram(Of of) const {
    prometheus::ClientMetric::Histogram sum;
    for (const Aligned& shard : shards_) of(shard.value)->AddTo(sum);
    return sum;
  }

 private:
  /// More than the threads that record on a machine of 16 cores, most of the time.
  static constexpr size_t kShards = 16;
  struct alignas(64) Aligned {
    T value;
  };

  static size_t Group() { return ThreadNumber() % kShards; }

  std::array<Aligned, kShards> shards_;
};

/// What calls recorded.
struct RequestCounters {
  std::array<std::array<Counter, kCodeSlots>, kKinds> requests{};
  std::array<Counter, kDirectionCount> malformed{};
  std::array<LatencyHistogram, kOpDirections> request_seconds;
  std::array<LatencyHistogram, kStageCount> stage_seconds;
  std::array<Counter, kRejectReasonCount> rejected{};
  std::array<Counter, kStageCount> deadline_exceeded{};
  std::array<Counter, kStageCount> cancelled{};
  std::array<Counter, kTransportKindCount> bytes_in{};
  std::array<Counter, kTransportKindCount> bytes_out{};
};

inline constexpr size_t kMaxCloseReasons = 8;

/// What the batches of one device recorded.
struct BatchCounters {
  std::array<Counter, kKinds> executions{};
  std::array<Counter, kKinds> rows{};
  std::array<Counter, kKinds> kernel_bytes{};
  std::array<Counter, kKinds> kernel_ns{};
  AtomicHistogram<kRatioBounds, 1'000'000> bandwidth_ratio;
  AtomicHistogram<kBatchRequestBounds, 1> batch_requests;
  AtomicHistogram<kBatchRowBounds, 1> batch_rows;
  std::array<Counter, kMaxCloseReasons> batch_close{};
  Counter bytes_in{0};
  Counter bytes_out{0};
  Counter slot_busy_ns{0};
};

/// Everything known about one device label.
struct DeviceMetrics {
  Sharded<BatchCounters> batches;
  std::atomic<double> copy_bandwidth{0.0};
  Gauge slots{0};
  Gauge pinned_used{0};
  Gauge pinned_free{0};
  Gauge pinned_limit{0};
  Gauge pool_used{0};
  Gauge pool_free{0};
  Gauge pool_limit{0};
};

class Metrics::Impl : public prometheus::Collectable {
 public:
  explicit Impl(MetricsOptions options_in);

  /// Every series, in a fixed number: also those that are still zero.
  std::vector<prometheus::MetricFamily> Collect() const override;

  static size_t KindIndex(Op op, Direction direction, DType dtype) {
    return OpDirectionIndex(op, direction) * kDTypeCount + static_cast<size_t>(dtype);
  }
  static size_t OpDirectionIndex(Op op, Direction direction) {
    return static_cast<size_t>(op) * kDirectionCount + static_cast<size_t>(direction);
  }
  static size_t CodeIndex(absl::StatusCode code);

  /// By device, null for those that have no card; they live as long as this object.
  std::vector<GpuPoller*> Gpus() const ABSL_LOCKS_EXCLUDED(readers_mutex);
  /// How many are open, as their owner says now; nothing without an owner.
  std::optional<int64_t> Connections() const ABSL_LOCKS_EXCLUDED(readers_mutex);
  /// The same of the memory that messages are received in.
  std::optional<MemoryUse> ReceiveMemory() const ABSL_LOCKS_EXCLUDED(readers_mutex);

  Totals totals() const;

  const MetricsOptions options;
  const double start_time_seconds;
  Sharded<RequestCounters> calls;
  std::array<Counter, kCudaErrorKindCount> cuda_errors{};
  std::vector<std::unique_ptr<DeviceMetrics>> devices;
  RecentErrors recent_errors;

  Gauge queue_requests{0};
  Gauge queue_requests_limit{0};
  Gauge in_flight_requests{0};
  Gauge in_flight_bytes{0};
  Gauge in_flight_bytes_limit{0};
  Gauge streams{0};
  Gauge unsent_bytes{0};
  Counter write_timeouts{0};
  Counter spans_written{0};
  Counter spans_dropped{0};
  std::atomic<ServingState> serving_state{ServingState::kStarting};
  Gauge draining{0};

  /// Taken by scrapes and by who sets a reader, never while a request is served, nor over a call to
  /// a reader.
  mutable std::mutex readers_mutex;
  /// By device; empty for those that have no card. Never taken away: pointers stay good.
  std::vector<std::unique_ptr<GpuPoller>> gpus ABSL_GUARDED_BY(readers_mutex);
  std::function<int64_t()> read_connections ABSL_GUARDED_BY(readers_mutex);
  std::function<MemoryUse()> read_receive_memory ABSL_GUARDED_BY(readers_mutex);
};

}  // namespace norm::server
