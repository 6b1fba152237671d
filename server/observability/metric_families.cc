// Metrics::Impl::Collect: the counters as Prometheus families. Names and labels are those of the
// README's metrics table.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::vector<ClientMetric::Label>;

constexpr const char* kStageNames[kStageCount] = {"decode",   "queue",  "copy_in", "kernel",
                                                  "copy_out", "encode", "send"};
constexpr const char* kRejectNames[kRejectReasonCount] = {
    "queue_full", "byte_budget", "too_large",    "draining",        "no_device",        "invalid",
    "displaced",  "deadline",    "unsent_bytes", "unauthenticated", "permission_denied"};
constexpr const char* kTransportNames[kTransportKindCount] = {"grpc"};

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

double Value(const Counter& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}
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

double ResidentBytes() {
  long total = 0;
  long resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void CollectRequests(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily requests = Family(
      "normd_requests_total", "Requests ended, by computation and gRPC code", MetricType::Counter);
  ForEachKind([&](Op op, Direction direction, DType dtype) {
    const auto& codes = m.requests[Metrics::Impl::KindIndex(op, direction, dtype)];
    for (size_t code = 0; code < kCodeSlots; ++code) {
      Labels labels = KindLabels(op, direction, dtype);
      labels.push_back({"code", CodeName(code)});
      AddCounter(requests, std::move(labels), Value(codes[code]));
    }
  });
  for (int d = 0; d < kDirectionCount; ++d) {
    AddCounter(requests,
               {{"op", "unknown"},
                {"direction", DirectionName(static_cast<Direction>(d))},
                {"dtype", "unknown"},
                {"code", "INVALID_ARGUMENT"}},
               Value(m.malformed[static_cast<size_t>(d)]));
  }
  out.push_back(std::move(requests));

  MetricFamily seconds = Family("normd_request_seconds",
                                "Message complete until the response is handed to gRPC, OK ones",
                                MetricType::Histogram);
  for (int op = 0; op < kOpCount; ++op) {
    for (int d = 0; d < kDirectionCount; ++d) {
      const auto direction = static_cast<Direction>(d);
      AddHistogram(
          seconds, {{"op", OpName(static_cast<Op>(op))}, {"direction", DirectionName(direction)}},
          m.request_seconds[Metrics::Impl::OpDirectionIndex(static_cast<Op>(op), direction)]
              .Read());
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
    const Labels labels = {{"stage", kStageNames[stage]}};
    AddHistogram(seconds, labels, m.stage_seconds[stage].Read());
    AddCounter(deadline, labels, Value(m.deadline_exceeded[stage]));
    AddCounter(cancelled, labels, Value(m.cancelled[stage]));
  }
  out.push_back(std::move(seconds));
  out.push_back(std::move(deadline));
  out.push_back(std::move(cancelled));
}

void CollectBatches(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily requests =
      Family("normd_batch_requests", "Requests in one launch", MetricType::Histogram);
  AddHistogram(requests, {}, m.batch_requests.Read());
  out.push_back(std::move(requests));
  MetricFamily rows = Family("normd_batch_rows", "Rows in one launch", MetricType::Histogram);
  AddHistogram(rows, {}, m.batch_rows.Read());
  out.push_back(std::move(rows));
  MetricFamily close = Family("normd_batch_close_total",
                              "Launches by why the batch stopped growing", MetricType::Counter);
  for (size_t i = 0; i < m.close_reasons.size(); ++i) {
    AddCounter(close, {{"reason", m.close_reasons[i]}}, Value(m.batch_close[i]));
  }
  out.push_back(std::move(close));
}

void CollectDevices(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily executions = Family("normd_executions_total", "Launches", MetricType::Counter);
  MetricFamily bytes =
      Family("normd_kernel_bytes_total", "Bytes kernels had to move: each input and output once",
             MetricType::Counter);
  MetricFamily seconds =
      Family("normd_kernel_seconds_total", "Time kernels took", MetricType::Counter);
  MetricFamily ratio =
      Family("normd_kernel_bandwidth_ratio",
             "Achieved share of the device's measured copy bandwidth", MetricType::Histogram);
  MetricFamily busy =
      Family("normd_slot_busy_seconds_total", "Time executor slots were taken, summed over slots",
             MetricType::Counter);
  MetricFamily pinned =
      Family("normd_pinned_pool_bytes", "Host staging memory of a device", MetricType::Gauge);
  MetricFamily pool = Family("normd_device_pool_bytes", "Pooled device memory", MetricType::Gauge);
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const DeviceCounters& device = *m.devices[i];
    const ClientMetric::Label name = {"device", m.device_names[i]};
    ForEachKind([&](Op op, Direction direction, DType dtype) {
      const size_t kind = Metrics::Impl::KindIndex(op, direction, dtype);
      Labels labels = KindLabels(op, direction, dtype);
      labels.push_back(name);
      AddCounter(executions, labels, Value(device.executions[kind]));
      AddCounter(bytes, labels, Value(device.kernel_bytes[kind]));
      AddCounter(seconds, labels, Value(device.kernel_ns[kind]) * 1e-9);
    });
    AddHistogram(ratio, {name}, device.bandwidth_ratio.Read());
    AddCounter(busy, {name}, Value(device.slot_busy_ns) * 1e-9);
    AddGauge(pinned, {name, {"state", "used"}}, Value(device.pinned_used));
    AddGauge(pinned, {name, {"state", "free"}}, Value(device.pinned_free));
    AddGauge(pool, {name, {"state", "used"}}, Value(device.pool_used));
    AddGauge(pool, {name, {"state", "free"}}, Value(device.pool_free));
  }
  for (MetricFamily* family : {&executions, &bytes, &seconds, &ratio, &busy, &pinned, &pool}) {
    out.push_back(std::move(*family));
  }
}

void CollectTransport(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  MetricFamily bytes =
      Family("normd_transport_bytes_total", "Tensor bytes received and sent", MetricType::Counter);
  for (size_t i = 0; i < kTransportKindCount; ++i) {
    AddCounter(bytes, {{"transport", kTransportNames[i]}, {"way", "in"}}, Value(m.bytes_in[i]));
    AddCounter(bytes, {{"transport", kTransportNames[i]}, {"way", "out"}}, Value(m.bytes_out[i]));
  }
  out.push_back(std::move(bytes));
  MetricFamily rejected = Family(
      "normd_rejected_total", "Requests turned away without being computed", MetricType::Counter);
  for (size_t i = 0; i < kRejectReasonCount; ++i) {
    AddCounter(rejected, {{"reason", kRejectNames[i]}}, Value(m.rejected[i]));
  }
  out.push_back(std::move(rejected));
  MetricFamily timeouts =
      Family("normd_write_timeouts_total",
             "Calls broken off since their reader did not take a response", MetricType::Counter);
  AddCounter(timeouts, {}, Value(m.write_timeouts));
  out.push_back(std::move(timeouts));
  MetricFamily errors =
      Family("normd_cuda_errors_total", "Errors of the CUDA runtime; sticky ones lose the device",
             MetricType::Counter);
  AddCounter(errors, {{"sticky", "false"}}, Value(m.cuda_errors[0]));
  AddCounter(errors, {{"sticky", "true"}}, Value(m.cuda_errors[1]));
  out.push_back(std::move(errors));
}

void CollectGauges(const Metrics::Impl& m, std::vector<MetricFamily>& out) {
  const auto gauge = [&out](const char* name, const char* help, double value) {
    MetricFamily family = Family(name, help, MetricType::Gauge);
    AddGauge(family, {}, value);
    out.push_back(std::move(family));
  };
  gauge("normd_queue_requests", "Requests waiting for a slot", Value(m.queue_requests));
  gauge("normd_in_flight_requests", "Accepted requests without an answer yet",
        Value(m.in_flight_requests));
  gauge("normd_in_flight_bytes", "Tensor bytes of accepted requests", Value(m.in_flight_bytes));
  gauge("normd_in_flight_bytes_limit", "Admission limit of in_flight_bytes",
        Value(m.in_flight_bytes_limit));
  gauge("normd_unsent_bytes", "Responses that wait for their readers", Value(m.unsent_bytes));
  gauge("normd_streams", "Open NormalizeStream calls", Value(m.streams));
  gauge("normd_ready", "1 while the server takes requests", Value(m.ready));
  gauge("normd_draining", "1 from the first SIGTERM on", Value(m.draining));
  gauge("process_start_time_seconds", "Start time, seconds since the epoch", m.start_time_seconds);
  gauge("process_resident_memory_bytes", "Resident memory", ResidentBytes());
  MetricFamily info = Family("normd_build_info", "Always 1; what was built", MetricType::Gauge);
  AddGauge(info,
           {{"version", m.build.version},
            {"compiler", m.build.compiler},
            {"cuda_architectures", m.build.cuda_architectures}},
           1.0);
  out.push_back(std::move(info));
}

}  // namespace

std::vector<MetricFamily> Metrics::Impl::Collect() const {
  std::vector<MetricFamily> families;
  CollectRequests(*this, families);
  CollectStages(*this, families);
  CollectBatches(*this, families);
  CollectDevices(*this, families);
  CollectTransport(*this, families);
  CollectGauges(*this, families);
  return families;
}

}  // namespace norm::server
