// The connections of a client.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "norm/client/options.h"

namespace norm::client {

/// Channels with one TCP connection each, taken in turn.
class ChannelPool {
 public:
  ChannelPool(const std::string& address, const ClientOptions& options,
              const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  /// Threads: any.
  const std::shared_ptr<grpc::Channel>& Next();

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::atomic<size_t> next_{0};
};

}  // namespace norm::client
