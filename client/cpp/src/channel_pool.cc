#include "channel_pool.h"

#include <climits>
#include <optional>
#include <random>

#include "absl/time/time.h"
#include "address.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace norm::client {
namespace {

// Large DATA frames: +5 to +15 % on 16 MiB messages (gRPC 1.51, loopback, 2 cores).
constexpr int kMaxFrameBytes = 1 << 20;
constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);
// Of replicas: one whose machine vanished is left within this and the timeout above.
constexpr absl::Duration kReplicaKeepalive = absl::Seconds(20);
// A server is back within seconds of its restart. gRPC would wait up to two minutes between tries
// to connect, 20 s for one of them, and 30 s before it asks DNS for replicas anew.
constexpr absl::Duration kFirstReconnect = absl::Milliseconds(100);
constexpr absl::Duration kSlowestReconnect = absl::Seconds(5);
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kResolveInterval = absl::Seconds(5);

// A replica that says NOT_SERVING, as one does that drains, gets no call. A lone server is called
// whatever it says: it serves on while it drains, and there is no other.
constexpr char kReplicas[] = R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "healthCheckConfig": {"serviceName": ""}
})";

void SetMs(grpc::ChannelArguments* arguments, const char* name, absl::Duration duration) {
  arguments->SetInt(name, static_cast<int>(absl::ToInt64Milliseconds(duration)));
}

grpc::ChannelArguments Arguments(const ClientOptions& options, TargetKind kind, int index) {
  grpc::ChannelArguments arguments;
  // Channels with equal arguments would share one connection.
  arguments.SetInt("normd.connection", index);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  arguments.SetMaxSendMessageSize(INT_MAX);
  // Tensors do not compress, and compressing would copy them.
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  SetMs(&arguments, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnect);
  SetMs(&arguments, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kSlowestReconnect);
  SetMs(&arguments, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeout);
  SetMs(&arguments, GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveInterval);
  std::optional<absl::Duration> keepalive = options.keepalive_interval;
  if (kind == TargetKind::kReplicas) {
    arguments.SetServiceConfigJSON(kReplicas);
    // DNS would name another one, or none.
    arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    if (!keepalive.has_value()) keepalive = kReplicaKeepalive;
  }
  // Tries are made here (retry.h). With gRPC's own as well, a stream whose server died behind a
  // proxy stayed unanswered and outlived its cancel in 2 of about 80 loads with three dying servers,
  // without them in none of 115 (gRPC 1.51, nginx 1.22); why is not known.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (keepalive.has_value()) {
    SetMs(&arguments, GRPC_ARG_KEEPALIVE_TIME_MS, *keepalive);
    SetMs(&arguments, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeout);
  }
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return arguments;
}

}  // namespace

ChannelPool::ChannelPool(const std::vector<ChannelTarget>& targets, TargetKind kind,
                         const ClientOptions& options)
    // Clients that start together begin with different replicas.
    : kind_(kind), next_(std::random_device()()) {
  for (int i = 0; i < options.connections; ++i) {
    for (const ChannelTarget& target : targets) {
      channels_.push_back(
          grpc::CreateCustomChannel(target.name, target.credentials, Arguments(options, kind, i)));
    }
  }
}

const std::shared_ptr<grpc::Channel>& ChannelPool::Next() {
  if (kind_ == TargetKind::kOneServer) return Turn();
  const std::shared_ptr<grpc::Channel>* waiting = nullptr;
  // A turn for each look: the channel after one that is away would get its calls otherwise.
  for (size_t looked = 0; looked < channels_.size(); ++looked) {
    const std::shared_ptr<grpc::Channel>& channel = Turn();
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    if (state != GRPC_CHANNEL_TRANSIENT_FAILURE && waiting == nullptr) waiting = &channel;
  }
  return waiting != nullptr ? *waiting : Turn();
}

const std::shared_ptr<grpc::Channel>& ChannelPool::Turn() {
  return channels_[next_.fetch_add(1, std::memory_order_relaxed) % channels_.size()];
}

}  // namespace norm::client
