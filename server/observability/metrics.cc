#include "server/observability/metrics.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

void Add(Counter& counter, int64_t value) {
  if (value > 0) counter.fetch_add(static_cast<uint64_t>(value), std::memory_order_relaxed);
}

uint64_t Read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

}  // namespace

Metrics::Impl::Impl(std::vector<std::string> devices_in, std::vector<std::string> reasons_in,
                    BuildInfo build_info)
    : device_names(std::move(devices_in)),
      close_reasons(std::move(reasons_in)),
      build(std::move(build_info)),
      start_time_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())),
      batch_close(close_reasons.size()) {
  for (size_t i = 0; i < device_names.size(); ++i) {
    devices.push_back(std::make_unique<DeviceCounters>());
  }
}

size_t Metrics::Impl::CodeIndex(absl::StatusCode code) {
  const auto found = std::find(kCountedCodes.begin(), kCountedCodes.end(), code);
  return static_cast<size_t>(found - kCountedCodes.begin());
}

Metrics::Metrics(std::vector<std::string> device_names, std::vector<std::string> close_reasons,
                 BuildInfo build)
    : impl_(std::make_shared<Impl>(std::move(device_names), std::move(close_reasons),
                                   std::move(build))) {}
Metrics::~Metrics() = default;

void Metrics::RecordRequest(Op op, Direction direction, DType dtype, absl::StatusCode code,
                            absl::Duration latency) {
  Add(impl_->requests[Impl::KindIndex(op, direction, dtype)][Impl::CodeIndex(code)], 1);
  // Refused requests would pull the quantiles down: latency is that of answered ones.
  if (code == absl::StatusCode::kOk) {
    impl_->request_seconds[Impl::OpDirectionIndex(op, direction)].Observe(
        absl::ToDoubleSeconds(latency));
  }
}

void Metrics::RecordMalformed(Direction direction) {
  Add(impl_->malformed[static_cast<size_t>(direction)], 1);
}

void Metrics::RecordStage(Stage stage, absl::Duration time) {
  impl_->stage_seconds[static_cast<size_t>(stage)].Observe(absl::ToDoubleSeconds(time));
}

void Metrics::RecordExecution(const ExecutionRecord& record) {
  impl_->batch_requests.Observe(static_cast<double>(record.requests));
  impl_->batch_rows.Observe(static_cast<double>(record.rows));
  Add(impl_->rows, record.rows);
  for (size_t i = 0; i < impl_->close_reasons.size(); ++i) {
    if (impl_->close_reasons[i] == record.close_reason) Add(impl_->batch_close[i], 1);
  }
  if (record.device_index < 0 || record.device_index >= static_cast<int>(impl_->devices.size())) {
    return;
  }
  DeviceCounters& device = *impl_->devices[static_cast<size_t>(record.device_index)];
  const size_t kind = Impl::KindIndex(record.op, record.direction, record.dtype);
  Add(device.executions[kind], 1);
  Add(device.kernel_bytes[kind], record.kernel_bytes);
  Add(device.kernel_ns[kind], absl::ToInt64Nanoseconds(record.kernel_time));
  const double bandwidth = device.copy_bandwidth.load(std::memory_order_relaxed);
  const double seconds = absl::ToDoubleSeconds(record.kernel_time);
  if (bandwidth > 0 && seconds > 0) {
    device.bandwidth_ratio.Observe(static_cast<double>(record.kernel_bytes) / seconds / bandwidth);
  }
}

void Metrics::RecordRejected(RejectReason reason) {
  Add(impl_->rejected[static_cast<size_t>(reason)], 1);
}

void Metrics::RecordDeadlineExceeded(Stage stage) {
  Add(impl_->deadline_exceeded[static_cast<size_t>(stage)], 1);
}

void Metrics::RecordCancelled(Stage stage) { Add(impl_->cancelled[static_cast<size_t>(stage)], 1); }

void Metrics::RecordTransport(TransportKind transport, int64_t bytes_in, int64_t bytes_out) {
  Add(impl_->bytes_in[static_cast<size_t>(transport)], bytes_in);
  Add(impl_->bytes_out[static_cast<size_t>(transport)], bytes_out);
}

void Metrics::RecordCudaError(bool sticky) { Add(impl_->cuda_errors[sticky ? 1 : 0], 1); }

void Metrics::AddSlotBusy(int device_index, absl::Duration time) {
  Add(impl_->devices.at(static_cast<size_t>(device_index))->slot_busy_ns,
      absl::ToInt64Nanoseconds(time));
}

void Metrics::SetDeviceCopyBandwidth(int device_index, double bytes_per_second) {
  impl_->devices.at(static_cast<size_t>(device_index))->copy_bandwidth.store(bytes_per_second);
}

void Metrics::SetQueue(int64_t requests, int64_t in_flight_requests, int64_t in_flight_bytes) {
  impl_->queue_requests.store(requests, std::memory_order_relaxed);
  impl_->in_flight_requests.store(in_flight_requests, std::memory_order_relaxed);
  impl_->in_flight_bytes.store(in_flight_bytes, std::memory_order_relaxed);
}

void Metrics::SetInFlightLimit(int64_t bytes) { impl_->in_flight_bytes_limit.store(bytes); }

void Metrics::SetPinnedPool(int device_index, int64_t used_bytes, int64_t free_bytes) {
  DeviceCounters& device = *impl_->devices.at(static_cast<size_t>(device_index));
  device.pinned_used.store(used_bytes, std::memory_order_relaxed);
  device.pinned_free.store(free_bytes, std::memory_order_relaxed);
}

void Metrics::SetDevicePool(int device_index, int64_t used_bytes, int64_t free_bytes) {
  DeviceCounters& device = *impl_->devices.at(static_cast<size_t>(device_index));
  device.pool_used.store(used_bytes, std::memory_order_relaxed);
  device.pool_free.store(free_bytes, std::memory_order_relaxed);
}

void Metrics::SetReady(bool ready) { impl_->ready.store(ready ? 1 : 0); }
void Metrics::SetDraining(bool draining) { impl_->draining.store(draining ? 1 : 0); }
void Metrics::SetUnsent(int64_t bytes) {
  impl_->unsent_bytes.store(bytes, std::memory_order_relaxed);
}

void Metrics::RecordWriteTimeout() {
  impl_->write_timeouts.fetch_add(1, std::memory_order_relaxed);
}

void Metrics::AddStreams(int64_t delta) {
  impl_->streams.fetch_add(delta, std::memory_order_relaxed);
}

Metrics::Totals Metrics::totals() const {
  Totals totals;
  for (const auto& kind : impl_->requests) {
    for (size_t code = 0; code < kCodeSlots; ++code) {
      (code == 0 ? totals.requests_ok : totals.requests_failed) += Read(kind[code]);
    }
  }
  for (const Counter& malformed : impl_->malformed) totals.requests_failed += Read(malformed);
  for (const auto& device : impl_->devices) {
    for (const Counter& executions : device->executions) totals.executions += Read(executions);
  }
  totals.rows = Read(impl_->rows);
  for (const Counter& bytes : impl_->bytes_in) totals.bytes_in += Read(bytes);
  for (const Counter& bytes : impl_->bytes_out) totals.bytes_out += Read(bytes);
  const auto stage = [this](Stage which) {
    const auto histogram = impl_->stage_seconds[static_cast<size_t>(which)].Read();
    return StageTotal{histogram.sample_count, histogram.sample_sum};
  };
  totals.encode = stage(Stage::kEncode);
  totals.send = stage(Stage::kSend);
  return totals;
}

}  // namespace norm::server
