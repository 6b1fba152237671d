// Metrics::Impl::Collect: the counters as Prometheus families. Names and labels are those of the
// README's metrics table.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/observability/metrics_impl.h"
#include "server/observability/process_usage.h"

namespace norm::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::vector<ClientMetric::Label>;

constexpr const char* kRejectNames[kRejectReasonCount] = {
    "queue_full", "byte_budget", "too_large",    "draining",        "no_device",        "invalid",
    "displaced",  "deadline",    "unsent_bytes", "unauthenticated", "permission_denied"};
constexpr const char* kTransportNames[kTransportKindCount] = {"grpc"};
constexpr const char* kCudaErrorNames[kCudaErrorKindCount] = {
    "out_of_memory", "refused", "memory_fault", "kernel_fault", "hardware", "context_lost"};

MetricFamily Family(std::string name, std::string help, MetricType type) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

void AddCounter(MetricFamily& family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
}

void AddGauge(MetricFamily& family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

void AddHistogram(MetricFamily& family, Labels labels, ClientMetric::Histogram histogram) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram = std::move(histogram);
  family.metric.push_back(std::move(metric));
}

double Value(const Counter& counter) { return static_cast<double>(Read(counter)); }
double Value(const Gauge& gauge) {
  return static_cast<double>(gauge.load(std::memory_order_relaxed));
}

/// Calls visit(op, direction, dtype) for every combination.
template <typename Visit>
void ForEachKind(Visit visit) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int direction = 0; direction < kDirectionCount; ++direction) {
      for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
        visit(static_cast<Op>(op), static_cast<Direction>(direction), static_cast<DType>(dtype));
      }
    }
  }
}

Labels KindLabels(Op op, Direction direction, DType dtype) {
  return {{"op", OpName(op)}, {"direction", DirectionName(direction)}, {"dtype", DTypeName(dtype)}};
}

std::string CodeName(size_t index) {
  return index < kCountedCodes.size() ? absl::StatusCodeToString(kCountedCodes[index]) : "OTHER";
}

/// What `of(shard)` points to, added up.
template <typename T, typename Of>
double Sum(const Sharded<T>& counters, Of of) {
  return static_cast<double>(counters.Sum(of));
}

void CollectRequests(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily requests = Family(
      "normd_requests_total", "Requests ended, by computation and gRPC code", MetricType::Counter);
  ForEachKind([&](Op op, Direction direction, DType dtype) {
    const size_t kind = Metrics::Impl::KindIndex(op, direction, dtype);
    for (size_t code = 0; code < kCodeSlots; ++code) {
      Labels labels = KindLabels(op, direction, dtype);
      labels.push_back({"code", CodeName(code)});
      AddCounter(requests, std::move(labels),
                 Sum(m.calls, [&](const auto& s) { return &s.requests[kind][code]; }));
    }
  });
  for (size_t d = 0; d < kDirectionCount; ++d) {
    AddCounter(requests,
               {{"op", "unknown"},
                {"direction", DirectionName(static_cast<Direction>(d))},
                {"dtype", "unknown"},
                {"code", "INVALID_ARGUMENT"}},
               Sum(m.calls, [&](const auto& s) { return &s.malformed[d]; }));
  }
  out.push_back(std::move(requests));

  MetricFamily seconds = Family("normd_request_seconds",
                                "Message complete until the response is handed to gRPC, OK ones",
                                MetricType::Histogram);
  for (int op = 0; op < kOpCount; ++op) {
    for (int d = 0; d < kDirectionCount; ++d) {
      const auto direction = static_cast<Direction>(d);
      const size_t i = Metrics::Impl::OpDirectionIndex(static_cast<Op>(op), direction);
      AddHistogram(seconds,
                   {{"op", OpName(static_cast<Op>(op))}, {"direction", DirectionName(direction)}},
                   m.calls.SumHistogram([&](const auto& s) { return &s.request_seconds[i]; }));
    }
  }
  out.push_back(std::move(seconds));
}

void CollectStages(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily seconds =
      Family("normd_stage_seconds", "Time of a request in one stage", MetricType::Histogram);
  MetricFamily deadline =
      Family("normd_deadline_exceeded_total",
             "Requests whose deadline passed, by the stage they were in", MetricType::Counter);
  MetricFamily cancelled =
      Family("normd_cancelled_total", "Requests whose caller left, by the stage they were in",
             MetricType::Counter);
  for (size_t stage = 0; stage < kStageCount; ++stage) {
    const Labels labels = {{"stage", StageName(static_cast<Stage>(stage))}};
    AddHistogram(seconds, labels,
                 m.calls.SumHistogram([&](const auto& s) { return &s.stage_seconds[stage]; }));
    AddCounter(deadline, labels,
               Sum(m.calls, [&](const auto& s) { return &s.deadline_exceeded[stage]; }));
    AddCounter(cancelled, labels, Sum(m.calls, [&](const auto& s) { return &s.cancelled[stage]; }));
  }
  out.push_back(std::move(seconds));
  out.push_back(std::move(deadline));
  out.push_back(std::move(cancelled));
}

void CollectKernels(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily executions = Family("normd_executions_total", "Launches", MetricType::Counter);
  MetricFamily rows = Family("normd_rows_total", "Rows (channels of BatchNorm) that were computed",
                             MetricType::Counter);
  MetricFamily bytes =
      Family("normd_kernel_bytes_total", "Bytes kernels had to move: each input and output once",
             MetricType::Counter);
  MetricFamily seconds =
      Family("normd_kernel_seconds_total", "Time kernels took", MetricType::Counter);
  MetricFamily ratio =
      Family("normd_kernel_bandwidth_ratio",
             "Achieved share of the device's measured copy bandwidth", MetricType::Histogram);
  MetricFamily copy = Family("normd_device_copy_bandwidth_bytes_per_second",
                             "What a copy in the device's memory moves, read and write counted, "
                             "measured at start; 0 when it could not be measured",
                             MetricType::Gauge);
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const DeviceMetrics& device = *m.devices[i];
    const ClientMetric::Label name = {"device", m.options.device_names[i]};
    ForEachKind([&](Op op, Direction direction, DType dtype) {
      const size_t kind = Metrics::Impl::KindIndex(op, direction, dtype);
      Labels labels = KindLabels(op, direction, dtype);
      labels.push_back(name);
      AddCounter(executions, labels,
                 Sum(device.batches, [&](const auto& b) { return &b.executions[kind]; }));
      AddCounter(rows, labels, Sum(device.batches, [&](const auto& b) { return &b.rows[kind]; }));
      AddCounter(bytes, labels,
                 Sum(device.batches, [&](const auto& b) { return &b.kernel_bytes[kind]; }));
      AddCounter(seconds, labels,
                 Sum(device.batches, [&](const auto& b) { return &b.kernel_ns[kind]; }) * 1e-9);
    });
    AddHistogram(ratio, {name},
                 device.batches.SumHistogram([](const auto& b) { return &b.bandwidth_ratio; }));
    AddGauge(copy, {name}, device.copy_bandwidth.load(std::memory_order_relaxed));
  }
  for (MetricFamily* family : {&executions, &rows, &bytes, &seconds, &ratio, &copy}) {
    out.push_back(std::move(*family));
  }
}

void CollectBatches(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily requests =
      Family("normd_batch_requests", "Requests in one launch", MetricType::Histogram);
  MetricFamily rows = Family("normd_batch_rows", "Rows in one launch", MetricType::Histogram);
  MetricFamily close = Family("normd_batch_close_total",
                              "Launches by why the batch stopped growing", MetricType::Counter);
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const DeviceMetrics& device = *m.devices[i];
    const ClientMetric::Label name = {"device", m.options.device_names[i]};
    AddHistogram(requests, {name},
                 device.batches.SumHistogram([](const auto& b) { return &b.batch_requests; }));
    AddHistogram(rows, {name},
                 device.batches.SumHistogram([](const auto& b) { return &b.batch_rows; }));
    for (size_t r = 0; r < std::min(m.options.close_reasons.size(), kMaxCloseReasons); ++r) {
      AddCounter(close, {name, {"reason", m.options.close_reasons[r]}},
                 Sum(device.batches, [&](const auto& b) { return &b.batch_close[r]; }));
    }
  }
  for (MetricFamily* family : {&requests, &rows, &close}) out.push_back(std::move(*family));
}

/// A device without a pool of its own has no gauges of one, and no CUDA errors.
void CollectDevices(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily bytes =
      Family("normd_device_bytes_total",
             "Tensor bytes to and from a device, over PCIe where it is a GPU", MetricType::Counter);
  MetricFamily busy =
      Family("normd_slot_busy_seconds_total", "Time executor slots were taken, summed over slots",
             MetricType::Counter);
  MetricFamily slots =
      Family("normd_slots", "Batches a device can hold at once", MetricType::Gauge);
  MetricFamily pinned =
      Family("normd_pinned_pool_bytes", "Host staging memory of a device", MetricType::Gauge);
  MetricFamily pinned_limit = Family("normd_pinned_pool_limit_bytes",
                                     "What used and free may reach together", MetricType::Gauge);
  MetricFamily pool = Family("normd_device_pool_bytes", "Pooled device memory", MetricType::Gauge);
  MetricFamily pool_limit = Family("normd_device_pool_limit_bytes",
                                   "What used and free may reach together", MetricType::Gauge);
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const DeviceMetrics& device = *m.devices[i];
    const ClientMetric::Label name = {"device", m.options.device_names[i]};
    AddCounter(bytes, {name, {"way", "in"}},
               Sum(device.batches, [&](const auto& b) { return &b.bytes_in; }));
    AddCounter(bytes, {name, {"way", "out"}},
               Sum(device.batches, [&](const auto& b) { return &b.bytes_out; }));
    AddCounter(busy, {name},
               Sum(device.batches, [&](const auto& b) { return &b.slot_busy_ns; }) * 1e-9);
    AddGauge(slots, {name}, Value(device.slots));
    AddGauge(pinned, {name, {"state", "used"}}, Value(device.pinned_used));
    AddGauge(pinned, {name, {"state", "free"}}, Value(device.pinned_free));
    AddGauge(pinned_limit, {name}, Value(device.pinned_limit));
    if (Value(device.pool_limit) == 0) continue;
    AddGauge(pool, {name, {"state", "used"}}, Value(device.pool_used));
    AddGauge(pool, {name, {"state", "free"}}, Value(device.pool_free));
    AddGauge(pool_limit, {name}, Value(device.pool_limit));
  }
  for (MetricFamily* family : {&bytes, &busy, &slots, &pinned, &pinned_limit}) {
    out.push_back(std::move(*family));
  }
  if (pool.metric.empty()) return;
  out.push_back(std::move(pool));
  out.push_back(std::move(pool_limit));
  MetricFamily errors =
      Family("normd_cuda_errors_total", "Errors of the CUDA runtime; sticky ones lose the device",
             MetricType::Counter);
  for (size_t i = 0; i < kCudaErrorKindCount; ++i) {
    AddCounter(errors,
               {{"kind", kCudaErrorNames[i]},
                {"sticky", IsSticky(static_cast<CudaErrorKind>(i)) ? "true" : "false"}},
               Value(m.cuda_errors[i]));
  }
  out.push_back(std::move(errors));
}

void CollectTransport(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily bytes =
      Family("normd_transport_bytes_total", "Tensor bytes received and sent", MetricType::Counter);
  for (size_t i = 0; i < kTransportKindCount; ++i) {
    AddCounter(bytes, {{"transport", kTransportNames[i]}, {"way", "in"}},
               Sum(m.calls, [&](const auto& s) { return &s.bytes_in[i]; }));
    AddCounter(bytes, {{"transport", kTransportNames[i]}, {"way", "out"}},
               Sum(m.calls, [&](const auto& s) { return &s.bytes_out[i]; }));
  }
  out.push_back(std::move(bytes));
  MetricFamily rejected = Family(
      "normd_rejected_total", "Requests turned away without being computed", MetricType::Counter);
  for (size_t i = 0; i < kRejectReasonCount; ++i) {
    AddCounter(rejected, {{"reason", kRejectNames[i]}},
               Sum(m.calls, [&](const auto& s) { return &s.rejected[i]; }));
  }
  out.push_back(std::move(rejected));
  MetricFamily timeouts =
      Family("normd_write_timeouts_total",
             "Calls broken off since their reader did not take a response", MetricType::Counter);
  AddCounter(timeouts, {}, Value(m.write_timeouts));
  out.push_back(std::move(timeouts));
  MetricFamily spans =
      Family("normd_span_records_total", "Calls and requests of streams for the span log",
             MetricType::Counter);
  AddCounter(spans, {{"outcome", "written"}}, Value(m.spans_written));
  AddCounter(spans, {{"outcome", "dropped"}}, Value(m.spans_dropped));
  out.push_back(std::move(spans));
}

void AddOneGauge(const char* name, const char* help, double value, std::vector<MetricFamily>& out) {
  MetricFamily family = Family(name, help, MetricType::Gauge);
  AddGauge(family, {}, value);
  out.push_back(std::move(family));
}

void CollectGauges(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  const auto gauge = [&out](const char* name, const char* help, double value) {
    AddOneGauge(name, help, value, out);
  };
  gauge("normd_queue_requests", "Requests waiting for a slot", Value(m.queue_requests));
  gauge("normd_queue_requests_limit", "Admission limit of queue_requests",
        Value(m.queue_requests_limit));
  gauge("normd_in_flight_requests", "Accepted requests without an answer yet",
        Value(m.in_flight_requests));
  gauge("normd_in_flight_bytes", "Tensor bytes of accepted requests", Value(m.in_flight_bytes));
  gauge("normd_in_flight_bytes_limit", "Admission limit of in_flight_bytes",
        Value(m.in_flight_bytes_limit));
  gauge("normd_unsent_bytes", "Responses that wait for their readers", Value(m.unsent_bytes));
  gauge("normd_streams", "Open NormalizeStream calls", Value(m.streams));
  gauge("normd_ready", "1 while the server takes requests", IsReady(m.serving_state) ? 1 : 0);
  gauge("normd_draining", "1 from the first SIGTERM on", Value(m.draining));
  MetricFamily info = Family("normd_build_info", "Always 1; what was built", MetricType::Gauge);
  AddGauge(info,
           {{"version", m.options.build.version},
            {"compiler", m.options.build.compiler},
            {"cuda_architectures", m.options.build.cuda_architectures}},
           1.0);
  out.push_back(std::move(info));
}

/// What the owner of connections says now, and what cards said last.
void CollectReaders(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  if (const std::optional<int64_t> connections = m.Connections(); connections.has_value()) {
    AddOneGauge("normd_connections", "Open connections to the gRPC port",
                static_cast<double>(*connections), out);
  }
  if (const std::optional<MemoryUse> use = m.ReceiveMemory(); use.has_value()) {
    MetricFamily memory =
        Family("normd_receive_memory_bytes", "Page-locked memory that messages are received in",
               MetricType::Gauge);
    AddGauge(memory, {{"state", "used"}}, static_cast<double>(use->used_bytes));
    AddGauge(memory, {{"state", "free"}}, static_cast<double>(use->free_bytes));
    out.push_back(std::move(memory));
  }
  MetricFamily age =
      Family("normd_gpu_reading_age_seconds",
             "Since the driver last told of the card; grows while it hangs", MetricType::Gauge);
  std::vector<std::pair<std::string, GpuReading>> cards;  // uuid and reading
  for (const GpuPoller* const gpu : m.Gpus()) {
    if (gpu == nullptr) continue;
    const GpuPoller::Last last = gpu->last();
    AddGauge(age, {{"gpu_uuid", gpu->uuid()}}, absl::ToDoubleSeconds(last.age));
    cards.emplace_back(gpu->uuid(), last.reading);
  }
  if (cards.empty()) return;
  out.push_back(std::move(age));
  // The names that NVIDIA's Triton has, and so what is made to read it; it has no temperature.
  const auto gauge = [&](const char* name, const char* help, auto of) {
    MetricFamily family = Family(name, help, MetricType::Gauge);
    for (const auto& [uuid, reading] : cards) {
      const std::optional<double> value = reading.*of;
      if (value.has_value()) AddGauge(family, {{"gpu_uuid", uuid}}, *value);
    }
    if (!family.metric.empty()) out.push_back(std::move(family));
  };
  gauge("nv_gpu_utilization", "Share of the last sample period with a kernel running",
        &GpuReading::utilization);
  gauge("nv_gpu_power_usage", "Power draw of the card in watts", &GpuReading::power_watts);
  gauge("nv_gpu_power_limit", "Power limit of the card in watts", &GpuReading::power_limit_watts);
  gauge("nv_gpu_memory_used_bytes", "Device memory in use, by all processes",
        &GpuReading::memory_used_bytes);
  gauge("nv_gpu_memory_total_bytes", "Device memory of the card", &GpuReading::memory_total_bytes);
  gauge("nv_gpu_temperature_celsius", "Temperature of the card", &GpuReading::temperature_celsius);
}

void CollectProcess(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  const ProcessUsage usage = ReadProcessUsage();
  MetricFamily cpu =
      Family("process_cpu_seconds_total", "Processor time of all threads", MetricType::Counter);
  AddCounter(cpu, {}, usage.cpu_seconds);
  out.push_back(std::move(cpu));
  AddOneGauge("process_start_time_seconds", "Start time, seconds since the epoch",
              m.start_time_seconds, out);
  AddOneGauge("process_resident_memory_bytes", "Resident memory", usage.resident_bytes, out);
  AddOneGauge("process_open_fds", "Open file descriptors", usage.open_fds, out);
  AddOneGauge("process_max_fds", "Limit of open file descriptors", usage.max_fds, out);
  AddOneGauge("process_threads", "Threads", usage.threads, out);
}

}  // namespace

std::vector<MetricFamily> Metrics::Impl::Collect() const {
  std::vector<MetricFamily> families;
  CollectRequests(*this, families);
  CollectStages(*this, families);
  CollectKernels(*this, families);
  CollectBatches(*this, families);
  CollectDevices(*this, families);
  CollectTransport(*this, families);
  CollectGauges(*this, families);
  CollectReaders(*this, families);
  CollectProcess(*this, families);
  return families;
}

}  // namespace norm::server
