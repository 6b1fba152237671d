// A real server on a free port, with the executor of the test's choice.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

#include "gtest/gtest.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"
#include "server/scheduler/batching_scheduler.h"
#include "server/transport/grpc_server.h"

namespace norm::test {

struct InProcessServerOptions {
  server::GrpcServerOptions grpc = {.threads = 2, .drain_timeout = absl::Seconds(20)};
  server::BatchingSchedulerOptions scheduler;
  const server::Clock* clock = nullptr;  // borrowed; the real one if null
  server::LogOptions log = {server::LogLevel::kError, server::LogFormat::kText};
};

/// Ownership: borrows executor and metrics.
class InProcessServer {
 public:
  InProcessServer(server::BatchExecutor& executor, server::Metrics& metrics,
                  const InProcessServerOptions& options = {})
      : metrics_(metrics),
        log_(options.log),
        clock_(options.clock != nullptr ? *options.clock : server::Clock::Real()),
        scheduler_({&executor}, options.scheduler, clock_, metrics_) {
    server::ServerDescription description;
    description.version = "0.0.0-test";
    description.devices.push_back(
        {.name = executor.device_name(), .healthy = [&executor] { return executor.healthy(); }});
    description.max_message_bytes = static_cast<uint64_t>(options.grpc.max_message_bytes);
    auto server = server::GrpcServer::Start(options.grpc, std::move(description), scheduler_,
                                            metrics_, clock_, log_);
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      std::abort();
    }
    server_ = *std::move(server);
    server_->SetHealthy(true);
  }

  const std::string& address() const { return server_->address(); }
  server::GrpcServer& server() { return *server_; }
  server::BatchingScheduler& scheduler() { return scheduler_; }
  server::Metrics& metrics() { return metrics_; }

  /// A connection of its own: channels with equal arguments would share one.
  std::shared_ptr<grpc::Channel> Connect() { return Connect(address()); }
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
    grpc::ChannelArguments arguments;
    // What arrives unasked is no more than the protocol's first window.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

 private:
  server::Metrics& metrics_;
  server::Logger log_;
  const server::Clock& clock_;
  server::BatchingScheduler scheduler_;
  std::unique_ptr<server::GrpcServer> server_;
};

}  // namespace norm::test
