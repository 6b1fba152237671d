#include "channel_pool.h"

#include <climits>
#include <optional>
#include <random>
#include <utility>

#include "absl/time/time.h"
#include "channel_credentials.h"
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
constexpr std::chrono::seconds kLookInterval{1};

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

std::vector<std::string> FilesOf(const std::optional<TlsOptions>& tls) {
  std::vector<std::string> paths;
  if (!tls.has_value()) return paths;
  for (const std::string& path : {tls->root_ca_file, tls->cert_file, tls->key_file}) {
    if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> Make(const Targets& targets,
                                                                 const ClientOptions& options) {
  std::vector<std::shared_ptr<grpc::ChannelCredentials>> credentials;
  for (const std::string& name : targets.names) {
    auto made = MakeChannelCredentials(name, options);
    if (!made.ok()) return made.status();
    credentials.push_back(*std::move(made));
  }
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.connections; ++i) {
    for (size_t j = 0; j < credentials.size(); ++j) {
      channels.push_back(grpc::CreateCustomChannel(targets.names[j], credentials[j],
                                                   Arguments(options, targets.kind, i)));
    }
  }
  return channels;
}

}  // namespace

ChannelPool::ChannelPool(const Targets& targets, const ClientOptions& options)
    : kind_(targets.kind),
      has_files_(!FilesOf(options.tls).empty()),
      channels_(FilesOf(options.tls), [targets, options] { return Make(targets, options); }),
      next_look_((Clock::now() + kLookInterval).time_since_epoch()),
      // Clients that start together begin with different replicas.
      next_(std::random_device()()) {}

absl::StatusOr<std::unique_ptr<ChannelPool>> ChannelPool::Create(const Targets& targets,
                                                                 const ClientOptions& options) {
  std::unique_ptr<ChannelPool> pool(new ChannelPool(targets, options));
  if (absl::Status status = pool->channels_.Load(); !status.ok()) return status;
  return pool;
}

std::shared_ptr<grpc::Channel> ChannelPool::Next() {
  if (has_files_) FollowFiles();
  const std::shared_ptr<const Channels> channels = channels_.value();
  if (kind_ == TargetKind::kOneServer) return Turn(*channels);
  const std::shared_ptr<grpc::Channel>* waiting = nullptr;
  // A turn for each look: the channel after one that is away would get its calls otherwise.
  for (size_t looked = 0; looked < channels->size(); ++looked) {
    const std::shared_ptr<grpc::Channel>& channel = Turn(*channels);
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    if (state != GRPC_CHANNEL_TRANSIENT_FAILURE && waiting == nullptr) waiting = &channel;
  }
  return waiting != nullptr ? *waiting : Turn(*channels);
}

void ChannelPool::FollowFiles() {
  if (Clock::now().time_since_epoch() < next_look_.load(std::memory_order_relaxed) ||
      looking_.exchange(true, std::memory_order_acquire)) {
    return;
  }
  // What cannot be used leaves the channels that there are; their handshakes tell when they fail.
  channels_.LookAgain().IgnoreError();
  next_look_.store((Clock::now() + kLookInterval).time_since_epoch(), std::memory_order_relaxed);
  looking_.store(false, std::memory_order_release);
}

const std::shared_ptr<grpc::Channel>& ChannelPool::Turn(const Channels& channels) {
  return channels[next_.fetch_add(1, std::memory_order_relaxed) % channels.size()];
}

}  // namespace norm::client
