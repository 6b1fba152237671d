// All settings of normd: read from flags, checked once, handed to each room as that room's own
// options.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/device/device_registry.h"
#include "server/observability/logging.h"
#include "server/observability/span_log.h"
#include "server/scheduler/batching_scheduler.h"
#include "server/transport/grpc_server.h"

namespace norm::server {

struct ServerConfig {
  GrpcServerOptions grpc;
  BatchingSchedulerOptions scheduler;
  DeviceSelection device = DeviceSelection::kAuto;
  DeviceOptions device_options;
  LogOptions log;
  SpanLogOptions spans;  // without the version
  std::string metrics_listen;
  bool record_metrics = true;
  std::string port_file;             // empty: none is written
  int64_t receive_memory_bytes = 0;  // page-locked, that gRPC receives in; 0: none
  int processes = 1;                 // that share grpc.listen; 0: one for each GPU
};

/// Builds the configuration from the flags' current values (see SetFlags).
/// Errors: INVALID_ARGUMENT in one line that names the flag, the rule and the value.
absl::StatusOr<ServerConfig> ReadServerConfig();

/// Text of --help.
std::string ServerHelp();

}  // namespace norm::server
