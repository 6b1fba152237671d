// The connections of a client.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "address.h"
#include "grpcpp/channel.h"
#include "norm/client/options.h"
#include "proto/credentials/watched_files.h"

namespace norm::client {

/// Channels, taken in turn: `options.connections` for each target. A channel has one TCP connection,
/// or to replicas behind one name one for each, which gRPC takes in turn.
///
/// When the files of `options.tls` change and can be used, channels are made anew: a connection shows
/// the certificate that it was made with. Calls under way keep the old ones.
class ChannelPool {
 public:
  /// Errors: those of MakeChannelCredentials.
  static absl::StatusOr<std::unique_ptr<ChannelPool>> Create(const Targets& targets,
                                                             const ClientOptions& options);

  /// The next channel. Among replicas, the next with one that takes calls; without one, the next
  /// that may find one. Looks at the files once a second at most. Threads: any.
  std::shared_ptr<grpc::Channel> Next();

 private:
  using Channels = std::vector<std::shared_ptr<grpc::Channel>>;
  using Clock = std::chrono::steady_clock;

  ChannelPool(const Targets& targets, const ClientOptions& options);
  void FollowFiles();
  const std::shared_ptr<grpc::Channel>& Turn(const Channels& channels);

  const TargetKind kind_;
  const bool has_files_;
  credentials::WatchedFiles<Channels> channels_;
  std::atomic<bool> looking_{false};  // a thread is in LookAgain
  std::atomic<Clock::duration> next_look_;
  std::atomic<size_t> next_{0};
};

}  // namespace norm::client
