// The connections of a client.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "address.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "norm/client/options.h"

namespace norm::client {

struct ChannelTarget {
  std::string name;
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

/// Channels, taken in turn: `options.connections` for each target. A channel has one TCP connection, or to replicas behind one name one for each, which gRPC takes in turn.
class ChannelPool {
 public:
  ChannelPool(const std::vector<ChannelTarget>& targets, TargetKind kind,
              const ClientOptions& options);

  /// The next channel. Among replicas, the next with one that takes calls; without one, the next
  /// that may find one. Threads: any.
  const std::shared_ptr<grpc::Channel>& Next();

 private:
  const std::shared_ptr<grpc::Channel>& Turn();

  const TargetKind kind_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::atomic<size_t> next_{0};
};

}  // namespace norm::client
