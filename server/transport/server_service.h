// ServerService: what this server is, can do and has done.
#pragma once

#include <atomic>

#include "norm/v1/server.grpc.pb.h"
#include "server/transport/server_description.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// Synchronous: its calls are rare, short and never wait.
class ServerService final : public norm::v1::ServerService::Service {
 public:
  /// `context` must outlive it.
  ServerService(ServerDescription description, const ServingContext& context);

  grpc::Status GetServerInfo(grpc::ServerContext* call,
                             const norm::v1::GetServerInfoRequest* request,
                             norm::v1::ServerInfo* response) override;
  grpc::Status GetStatistics(grpc::ServerContext* call,
                             const norm::v1::GetStatisticsRequest* request,
                             norm::v1::ServerStatistics* response) override;

  /// From now on GetServerInfo says draining.
  void SetDraining() { draining_.store(true, std::memory_order_relaxed); }

 private:
  const ServerDescription description_;
  const ServingContext& context_;
  const absl::Time started_;
  std::atomic<bool> draining_{false};
};

}  // namespace norm::server
