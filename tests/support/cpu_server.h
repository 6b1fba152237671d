// A real server on a free port with the CPU backend.
#pragma once

#include "server/device/cpu_batch_executor.h"
#include "tests/support/in_process_server.h"

namespace norm::test {

struct CpuServer {
  explicit CpuServer(const InProcessServerOptions& options = {},
                     const server::CpuBatchExecutorOptions& device = {})
      : executor(device, metrics), server(executor, metrics, options) {}

  server::Metrics metrics{{"cpu"}, server::BatchCloseReasonNames()};
  server::CpuBatchExecutor executor;
  InProcessServer server;
};

}  // namespace norm::test
