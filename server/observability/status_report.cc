#include "server/observability/status_report.h"

#include <unistd.h>

#include <array>
#include <optional>

#include "nlohmann/json.hpp"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

using nlohmann::json;

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

int64_t Value(const Gauge& gauge) { return gauge.load(std::memory_order_relaxed); }

json Queue(const Metrics::Impl& m) {
  json queue = {{"requests", Value(m.queue_requests)},
                {"requests_limit", Value(m.queue_requests_limit)},
                {"in_flight_requests", Value(m.in_flight_requests)},
                {"in_flight_bytes", Value(m.in_flight_bytes)},
                {"in_flight_bytes_limit", Value(m.in_flight_bytes_limit)},
                {"unsent_bytes", Value(m.unsent_bytes)},
                {"streams", Value(m.streams)}};
  if (const std::optional<int64_t> connections = m.Connections(); connections.has_value()) {
    queue["connections"] = *connections;
  }
  return queue;
}

/// Observations up to each of kLatencyBounds, and then all; `of(shard)` points to the histogram.
template <typename Of>
json Cumulative(const Sharded<RequestCounters>& calls, Of of) {
  const prometheus::ClientMetric::Histogram histogram = calls.SumHistogram(of);
  json counts = json::array();
  for (const auto& bucket : histogram.bucket) counts.push_back(bucket.cumulative_count);
  counts.push_back(histogram.sample_count);
  return counts;
}

json Latency(const Metrics::Impl& m) {
  json latency = {{"bounds_seconds", kLatencyBounds}};
  json all = Cumulative(m.calls, [](const auto& shard) { return &shard.request_seconds[0]; });
  for (size_t i = 1; i < kOpDirections; ++i) {
    const json one =
        Cumulative(m.calls, [i](const auto& shard) { return &shard.request_seconds[i]; });
    for (size_t bound = 0; bound < all.size(); ++bound) {
      all[bound] = all[bound].get<uint64_t>() + one[bound].get<uint64_t>();
    }
  }
  latency["request"] = std::move(all);
  for (size_t i = 0; i < kStageCount; ++i) {
    latency[kStageNames[i]] =
        Cumulative(m.calls, [i](const auto& shard) { return &shard.stage_seconds[i]; });
  }
  return latency;
}

json Pool(const Gauge& used, const Gauge& free, const Gauge& limit) {
  return {{"used", Value(used)}, {"free", Value(free)}, {"limit", Value(limit)}};
}

json Card(const GpuPoller& gpu) {
  const GpuPoller::Last last = gpu.last();
  json card = {{"uuid", gpu.uuid()}, {"age_seconds", absl::ToDoubleSeconds(last.age)}};
  const auto tell = [&card](const char* name, std::optional<double> value) {
    if (value.has_value()) card[name] = *value;
  };
  tell("utilization", last.reading.utilization);
  tell("power_watts", last.reading.power_watts);
  tell("power_limit_watts", last.reading.power_limit_watts);
  tell("memory_used_bytes", last.reading.memory_used_bytes);
  tell("memory_total_bytes", last.reading.memory_total_bytes);
  tell("temperature_celsius", last.reading.temperature_celsius);
  return card;
}

json Device(const DeviceMetrics& counters) {
  const auto kinds = [&counters](const auto BatchCounters::*array) {
    uint64_t sum = 0;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      sum += counters.batches.Sum([&](const auto& shard) { return &(shard.*array)[kind]; });
    }
    return sum;
  };
  const uint64_t busy_ns =
      counters.batches.Sum([](const auto& shard) { return &shard.slot_busy_ns; });
  json device = {
      {"slots", Value(counters.slots)},
      {"slot_busy_seconds", static_cast<double>(busy_ns) * 1e-9},
      {"executions", kinds(&BatchCounters::executions)},
      {"rows", kinds(&BatchCounters::rows)},
      {"kernel_bytes", kinds(&BatchCounters::kernel_bytes)},
      {"kernel_seconds", static_cast<double>(kinds(&BatchCounters::kernel_ns)) * 1e-9},
      {"copy_bandwidth", counters.copy_bandwidth.load(std::memory_order_relaxed)},
      {"pinned_pool", Pool(counters.pinned_used, counters.pinned_free, counters.pinned_limit)},
      {"device_pool", nullptr}};
  if (Value(counters.pool_limit) > 0) {
    device["device_pool"] = Pool(counters.pool_used, counters.pool_free, counters.pool_limit);
  }
  return device;
}

json Devices(const Metrics::Impl& m, const std::vector<DeviceStatus>& statuses) {
  const std::vector<GpuPoller*> gpus = m.Gpus();
  json devices = json::array();
  for (size_t i = 0; i < m.devices.size(); ++i) {
    json device = Device(*m.devices[i]);
    device["name"] = m.options.device_names[i];
    device["gpu"] = gpus[i] == nullptr ? json(nullptr) : Card(*gpus[i]);
    if (i < statuses.size()) {
      device["model"] = statuses[i].model;
      device["memory_bytes"] = statuses[i].memory_bytes;
      device["healthy"] = statuses[i].healthy();
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

json Errors(const RecentErrors& recent) {
  json errors = json::array();
  for (const RecentError& error : recent.List()) {
    errors.push_back({{"unix_time_seconds", absl::ToDoubleSeconds(error.time - absl::UnixEpoch())},
                      {"code", absl::StatusCodeToString(error.code)},
                      {"method", error.method},
                      {"message", error.message},
                      {"count", error.count}});
  }
  return errors;
}

}  // namespace

std::string StatusJson(const Metrics::Impl& metrics, const std::vector<DeviceStatus>& devices,
                       absl::Time now) {
  const double unix_time = absl::ToDoubleSeconds(now - absl::UnixEpoch());
  const Metrics::Totals totals = metrics.totals();
  uint64_t rejected = 0;
  for (size_t i = 0; i < kRejectReasonCount; ++i) {
    rejected += metrics.calls.Sum([i](const auto& shard) { return &shard.rejected[i]; });
  }
  bool gpu = false;
  for (const DeviceStatus& device : devices) gpu = gpu || device.gpu;
  const json status = {
      {"version", metrics.options.build.version},
      {"build", metrics.options.build.compiler},
      {"cuda_architectures", metrics.options.build.cuda_architectures},
      {"host", HostName()},
      {"backend", gpu ? "cuda" : "cpu"},
      {"state", ServingStateName(metrics.serving_state)},
      {"draining", Value(metrics.draining) != 0},
      {"recording", metrics.options.recording},
      {"uptime_seconds", unix_time - metrics.start_time_seconds},
      {"unix_time_seconds", unix_time},
      {"requests",
       {{"ok", totals.requests_ok}, {"failed", totals.requests_failed}, {"rejected", rejected}}},
      {"bytes", {{"in", totals.bytes_in}, {"out", totals.bytes_out}}},
      {"queue", Queue(metrics)},
      {"latency", Latency(metrics)},
      {"devices", Devices(metrics, devices)},
      {"errors", Errors(metrics.recent_errors)},
  };
  // What is no UTF-8 in a caller's text is replaced: no exception.
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace norm::server
