// What the status page shows: /status.json of the metrics port.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Of one device, in the order of the Metrics' device names.
struct DeviceStatus {
  std::string model;
  bool gpu = false;
  int64_t memory_bytes = 0;       // of the GPU; 0 for the CPU
  std::function<bool()> healthy;  // callable from any thread while the endpoint lives
};

/// One JSON object. Counts and bytes are totals since the start of the process, which a reader takes
/// differences of, over those of uptime_seconds; so that any number of readers may ask at any pace.
///
///   version, build, cuda_architectures, host, backend ("cpu" or "cuda")   strings
///   state        "starting", "serving", "draining" or "no healthy device"
///   draining, recording    booleans; without recording no totals move
///   uptime_seconds, unix_time_seconds
///   requests     {ok, failed, rejected}
///   bytes        {in, out} of tensors, received and sent
///   queue        {requests, requests_limit, in_flight_requests, in_flight_bytes,
///                 in_flight_bytes_limit, unsent_bytes, streams}, and connections when known
///   latency      {bounds_seconds: [...], request: [...], decode: [...], ...}: of all answered
///                requests and of each stage, observations up to each bound, and then all
///   devices      [{name, model, healthy, memory_bytes, slots, slot_busy_seconds, executions, rows,
///                  kernel_bytes, kernel_seconds, copy_bandwidth (bytes per second, 0: unknown),
///                  pinned_pool: {used, free, limit}, device_pool: the same or null,
///                  gpu: null, or {uuid, age_seconds} and what the driver tells of utilization (a
///                  share), power_watts, power_limit_watts, memory_used_bytes, memory_total_bytes,
///                  temperature_celsius}]
///   errors       the last calls that failed, the newest first: [{unix_time_seconds, code, method,
///                message, count}]; texts of callers may be in method and message
std::string StatusJson(const Metrics::Impl& metrics, const std::vector<DeviceStatus>& devices,
                       absl::Time now);

}  // namespace norm::server
