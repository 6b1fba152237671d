#include "server/observability/metrics.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

void Add(Counter& counter, int64_t value) {
  if (value > 0) counter.fetch_add(static_cast<uint64_t>(value), std::memory_order_relaxed);
}

}  // namespace

const char* StageName(Stage stage) { return kStageNames[static_cast<size_t>(stage)]; }

Metrics::Impl::Impl(MetricsOptions options_in)
    : options(std::move(options_in)),
      start_time_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())) {
  for (size_t i = 0; i < options.device_names.size(); ++i) {
    devices.push_back(std::make_unique<DeviceMetrics>());
  }
  const std::lock_guard lock(readers_mutex);
  gpus.resize(devices.size());
}

size_t Metrics::Impl::CodeIndex(absl::StatusCode code) {
  const auto found = std::find(kCountedCodes.begin(), kCountedCodes.end(), code);
  return static_cast<size_t>(found - kCountedCodes.begin());
}

std::vector<GpuPoller*> Metrics::Impl::Gpus() const {
  const std::lock_guard lock(readers_mutex);
  std::vector<GpuPoller*> pointers;
  for (const auto& gpu : gpus) pointers.push_back(gpu.get());
  return pointers;
}

std::optional<int64_t> Metrics::Impl::Connections() const {
  std::function<int64_t()> read;
  {
    const std::lock_guard lock(readers_mutex);
    read = read_connections;
  }
  if (!read) return std::nullopt;
  return read();
}

std::optional<MemoryUse> Metrics::Impl::ReceiveMemory() const {
  std::function<MemoryUse()> read;
  {
    const std::lock_guard lock(readers_mutex);
    read = read_receive_memory;
  }
  if (!read) return std::nullopt;
  return read();
}

size_t ThreadNumber() {
  static std::atomic<size_t> threads{0};
  static thread_local size_t mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

Metrics::Metrics(MetricsOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {}
Metrics::Metrics(std::vector<std::string> device_names, std::vector<std::string> close_reasons)
    : Metrics(MetricsOptions{.device_names = std::move(device_names),
                             .close_reasons = std::move(close_reasons)}) {}
Metrics::~Metrics() = default;

void Metrics::RecordRequest(Op op, Direction direction, DType dtype, absl::StatusCode code,
                            absl::Duration latency) {
  if (!impl_->options.recording) return;
  RequestCounters& calls = impl_->calls.mine();
  Add(calls.requests[Impl::KindIndex(op, direction, dtype)][Impl::CodeIndex(code)], 1);
  // Refused requests would pull the quantiles down: latency is that of answered ones.
  if (code == absl::StatusCode::kOk) {
    calls.request_seconds[Impl::OpDirectionIndex(op, direction)].Observe(
        absl::ToDoubleSeconds(latency));
  }
}

void Metrics::RecordMalformed(Direction direction) {
  if (!impl_->options.recording) return;
  Add(impl_->calls.mine().malformed[static_cast<size_t>(direction)], 1);
}

void Metrics::RecordError(absl::Time now, absl::string_view method, const absl::Status& status) {
  if (impl_->options.recording) impl_->recent_errors.Add(now, method, status);
}

void Metrics::RecordStage(Stage stage, absl::Duration time) {
  if (!impl_->options.recording) return;
  impl_->calls.mine().stage_seconds[static_cast<size_t>(stage)].Observe(
      absl::ToDoubleSeconds(time));
}

void Metrics::RecordExecution(const ExecutionRecord& record) {
  if (!impl_->options.recording || record.device_index < 0 ||
      record.device_index >= static_cast<int>(impl_->devices.size())) {
    return;
  }
  DeviceMetrics& device = *impl_->devices[static_cast<size_t>(record.device_index)];
  BatchCounters& batches = device.batches.mine();
  batches.batch_requests.Observe(static_cast<double>(record.requests));
  batches.batch_rows.Observe(static_cast<double>(record.rows));
  const std::vector<std::string>& reasons = impl_->options.close_reasons;
  const absl::string_view reason = record.close_reason;
  for (size_t i = 0; i < std::min(reasons.size(), kMaxCloseReasons); ++i) {
    if (reasons[i] != reason) continue;
    Add(batches.batch_close[i], 1);
    break;
  }
  const size_t kind = Impl::KindIndex(record.op, record.direction, record.dtype);
  Add(batches.executions[kind], 1);
  Add(batches.rows[kind], record.rows);
  Add(batches.kernel_bytes[kind], record.kernel_bytes);
  Add(batches.kernel_ns[kind], absl::ToInt64Nanoseconds(record.kernel_time));
  Add(batches.bytes_in, record.input_bytes);
  Add(batches.bytes_out, record.output_bytes);
  const double bandwidth = device.copy_bandwidth.load(std::memory_order_relaxed);
  const double seconds = absl::ToDoubleSeconds(record.kernel_time);
  if (bandwidth > 0 && seconds > 0) {
    batches.bandwidth_ratio.Observe(static_cast<double>(record.kernel_bytes) / seconds / bandwidth);
  }
}

void Metrics::RecordRejected(RejectReason reason) {
  if (!impl_->options.recording) return;
  Add(impl_->calls.mine().rejected[static_cast<size_t>(reason)], 1);
}

void Metrics::RecordDeadlineExceeded(Stage stage) {
  if (!impl_->options.recording) return;
  Add(impl_->calls.mine().deadline_exceeded[static_cast<size_t>(stage)], 1);
}

void Metrics::RecordCancelled(Stage stage) {
  if (!impl_->options.recording) return;
  Add(impl_->calls.mine().cancelled[static_cast<size_t>(stage)], 1);
}

void Metrics::RecordTransport(TransportKind transport, int64_t bytes_in, int64_t bytes_out) {
  if (!impl_->options.recording) return;
  RequestCounters& calls = impl_->calls.mine();
  Add(calls.bytes_in[static_cast<size_t>(transport)], bytes_in);
  Add(calls.bytes_out[static_cast<size_t>(transport)], bytes_out);
}

void Metrics::RecordCudaError(CudaErrorKind kind) {
  Add(impl_->cuda_errors[static_cast<size_t>(kind)], 1);
}

void Metrics::AddSlotBusy(int device_index, absl::Duration time) {
  if (!impl_->options.recording) return;
  Add(impl_->devices.at(static_cast<size_t>(device_index))->batches.mine().slot_busy_ns,
      absl::ToInt64Nanoseconds(time));
}

void Metrics::SetDeviceCopyBandwidth(int device_index, double bytes_per_second) {
  impl_->devices.at(static_cast<size_t>(device_index))->copy_bandwidth.store(bytes_per_second);
}

void Metrics::SetDeviceLimits(int device_index, const DeviceLimits& limits) {
  DeviceMetrics& device = *impl_->devices.at(static_cast<size_t>(device_index));
  device.slots.store(limits.slots);
  device.pinned_limit.store(limits.pinned_pool_bytes);
  device.pool_limit.store(limits.device_pool_bytes);
}

void Metrics::SetGpuReader(int device_index, std::string uuid, std::function<GpuReading()> read) {
  const std::lock_guard lock(impl_->readers_mutex);
  impl_->gpus.at(static_cast<size_t>(device_index)) =
      std::make_unique<GpuPoller>(std::move(uuid), std::move(read), impl_->options.gpu_interval);
}

std::vector<std::string> Metrics::StopGpuReaders(absl::Duration patience) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
  const std::vector<GpuPoller*> gpus = impl_->Gpus();
  for (GpuPoller* const gpu : gpus) {
    if (gpu != nullptr) gpu->Stop();
  }
  std::vector<std::string> hanging;
  for (GpuPoller* const gpu : gpus) {
    if (gpu != nullptr && !gpu->AwaitStopped(end)) hanging.push_back(gpu->uuid());
  }
  return hanging;
}

void Metrics::SetConnectionsReader(std::function<int64_t()> read) {
  const std::lock_guard lock(impl_->readers_mutex);
  impl_->read_connections = std::move(read);
}

void Metrics::SetReceiveMemoryReader(std::function<MemoryUse()> read) {
  const std::lock_guard lock(impl_->readers_mutex);
  impl_->read_receive_memory = std::move(read);
}

void Metrics::SetQueue(int64_t requests, int64_t in_flight_requests, int64_t in_flight_bytes) {
  impl_->queue_requests.store(requests, std::memory_order_relaxed);
  impl_->in_flight_requests.store(in_flight_requests, std::memory_order_relaxed);
  impl_->in_flight_bytes.store(in_flight_bytes, std::memory_order_relaxed);
}

void Metrics::SetAdmissionLimits(int64_t requests, int64_t bytes) {
  impl_->queue_requests_limit.store(requests);
  impl_->in_flight_bytes_limit.store(bytes);
}

void Metrics::SetPinnedPool(int device_index, int64_t used_bytes, int64_t free_bytes) {
  DeviceMetrics& device = *impl_->devices.at(static_cast<size_t>(device_index));
  device.pinned_used.store(used_bytes, std::memory_order_relaxed);
  device.pinned_free.store(free_bytes, std::memory_order_relaxed);
}

void Metrics::SetDevicePool(int device_index, int64_t used_bytes, int64_t free_bytes) {
  DeviceMetrics& device = *impl_->devices.at(static_cast<size_t>(device_index));
  device.pool_used.store(used_bytes, std::memory_order_relaxed);
  device.pool_free.store(free_bytes, std::memory_order_relaxed);
}

void Metrics::SetServingState(ServingState state) { impl_->serving_state.store(state); }
void Metrics::SetDraining(bool draining) { impl_->draining.store(draining ? 1 : 0); }
void Metrics::SetUnsent(int64_t bytes) {
  impl_->unsent_bytes.store(bytes, std::memory_order_relaxed);
}

void Metrics::RecordWriteTimeout() {
  impl_->write_timeouts.fetch_add(1, std::memory_order_relaxed);
}

void Metrics::RecordSpans(int64_t written, int64_t dropped) {
  Add(impl_->spans_written, written);
  Add(impl_->spans_dropped, dropped);
}

void Metrics::AddStreams(int64_t delta) {
  impl_->streams.fetch_add(delta, std::memory_order_relaxed);
}

Metrics::Totals Metrics::totals() const { return impl_->totals(); }

Metrics::Totals Metrics::Impl::totals() const {
  const Impl& m = *this;
  Totals totals;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (size_t code = 0; code < kCodeSlots; ++code) {
      (code == 0 ? totals.requests_ok : totals.requests_failed) +=
          m.calls.Sum([&](const auto& shard) { return &shard.requests[kind][code]; });
    }
  }
  for (size_t d = 0; d < kDirectionCount; ++d) {
    totals.requests_failed += m.calls.Sum([&](const auto& shard) { return &shard.malformed[d]; });
  }
  for (const auto& device : m.devices) {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      totals.executions +=
          device->batches.Sum([kind](const auto& shard) { return &shard.executions[kind]; });
      totals.rows += device->batches.Sum([kind](const auto& shard) { return &shard.rows[kind]; });
    }
  }
  for (size_t i = 0; i < kTransportKindCount; ++i) {
    totals.bytes_in += m.calls.Sum([&](const auto& shard) { return &shard.bytes_in[i]; });
    totals.bytes_out += m.calls.Sum([&](const auto& shard) { return &shard.bytes_out[i]; });
  }
  const auto stage = [&m](Stage which) {
    const auto histogram = m.calls.SumHistogram(
        [&](const auto& shard) { return &shard.stage_seconds[static_cast<size_t>(which)]; });
    return StageTotal{histogram.sample_count, histogram.sample_sum};
  };
  totals.encode = stage(Stage::kEncode);
  totals.send = stage(Stage::kSend);
  return totals;
}

}  // namespace norm::server
