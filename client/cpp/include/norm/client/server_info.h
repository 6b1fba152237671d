// What a server says about itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "norm/kernels/dtype.h"

namespace norm::client {

struct DeviceInfo {
  std::string name;  // "cpu", "cuda:0", ...
  std::string model;
  uint64_t memory_bytes = 0;
  int compute_capability = 0;  // 90 for sm_90; 0 for the CPU
  int multiprocessors = 0;     // or CPU threads
  bool healthy = false;
};

struct ServerLimits {
  uint64_t max_message_bytes = 0;
  uint64_t max_in_flight_bytes = 0;
  uint64_t max_queue_requests = 0;
  uint64_t max_batch_rows = 0;
  uint64_t max_batch_bytes = 0;
  uint32_t slots_per_device = 0;
  uint64_t max_unsent_bytes = 0;  // responses that wait for their readers
  uint64_t write_timeout_us = 0;  // a response not taken within this time breaks its call off
  uint64_t max_queue_delay_us = 0;
  uint64_t max_stream_uploads = 0;
  uint64_t stream_window_bytes = 0;
};

struct Capability {
  std::string op;         // "rms_norm", "layer_norm", "batch_norm"
  std::string direction;  // "forward", "backward"
  DType dtype = DType::kF32;
  std::vector<DType> weight_dtypes;
};

struct ServerInfo {
  std::string version;
  std::string build;
  std::vector<std::string> cuda_architectures;  // empty for a CPU-only build
  std::vector<DeviceInfo> devices;
  ServerLimits limits;
  std::vector<Capability> capabilities;
  double uptime_seconds = 0;
  bool draining = false;
  absl::Time
      time;  // of the server's clock when it answered; absl::UnixEpoch() where it does not say
};

/// The time that requests spent in one stage, added up.
struct StageTotal {
  uint64_t requests = 0;
  double seconds = 0;
};

struct ServerStatistics {
  uint64_t requests_ok = 0;
  uint64_t requests_failed = 0;
  uint64_t executions = 0;
  uint64_t rows = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t in_flight_requests = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t queued_requests = 0;
  StageTotal encode;  // building responses; Timing, which travels in them, does not hold it
  StageTotal send;    // until gRPC had sent them
};

/// grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class Health { kUnknown, kServing, kNotServing, kServiceUnknown };

}  // namespace norm::client
