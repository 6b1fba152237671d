#include "server/transport/grpc_server.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/transport/connections.h"
#include "server/transport/echo_service.h"
#include "server/transport/health.h"
#include "server/transport/health_service.h"
#include "server/transport/listen_address.h"
#include "server/transport/listening_credentials.h"
#include "server/transport/middleware/access.h"
#include "server/transport/middleware/failure_log.h"
#include "server/transport/norm_service.h"
#include "server/transport/queue_inbox.h"
#include "server/transport/queue_poller.h"
#include "server/transport/server_service.h"
#include "server/transport/serving_context.h"
#include "server/transport/stream_service.h"

namespace norm::server {
namespace {

/// Calls of each method that one queue waits for at a time. More arrivals wait a moment inside gRPC,
/// where a shutdown would end them as CANCELLED instead of refusing them.
constexpr int kArmedUnaryCalls = 32;
constexpr int kArmedStreamCalls = 4;
constexpr int kArmedHealthCalls = 4;
/// What connections without accepted calls get to close by themselves once gRPC has told them.
constexpr absl::Duration kGoodbye = absl::Milliseconds(100);

/// Large DATA frames from clients, as the client of this project takes them from the server: a GiB in
/// rows took 5 % less time (gRPC 1.51, loopback, H200 machine).
constexpr int kMaxFrameBytes = 1 << 20;

int ToMs(absl::Duration duration) { return static_cast<int>(absl::ToInt64Milliseconds(duration)); }

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(const GrpcServerOptions& options, ServerDescription description, Scheduler& scheduler,
       Metrics& metrics, const Clock& clock, const Logger& log)
      : options_(options),
        log_(log),
        failures_(log, clock),
        unsent_({options.max_unsent_bytes, options.write_timeout}, metrics, clock),
        context_{
            scheduler,
            metrics,
            clock,
            calls_,
            unsent_,
            {options.max_message_bytes},
            {options.max_stream_requests, options.max_stream_unsent_bytes,
             options.max_stream_uploads, options.stream_window_bytes, options.stream_stall_timeout},
            failures_,
            options.spans},
        server_service_(std::move(description), context_) {}

  ~Impl() { Shutdown(absl::ZeroDuration()).IgnoreError(); }

  absl::Status Start() {
    if (absl::Status status = ProbeListenAddress(options_.listen, options_.share_port);
        !status.ok()) {
      return status;
    }
    absl::StatusOr<std::unique_ptr<Security>> security = Security::Load(options_.security, log_);
    if (!security.ok()) return security.status();
    security_ = *std::move(security);
    access_.emplace(*security_, context_.metrics, context_.clock, failures_, options_.spans);
    // One reference that is never given back: with the last one, gRPC 1.51 waits for pollers of its
    // own that look up only every ten seconds, long after everything here has been drained.
    grpc_init();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();

    grpc::ServerBuilder builder;
    int port = 0;
    credentials_ = ListeningCredentials(*access_);
    builder.AddListeningPort(options_.listen, credentials_, &port);
    builder.RegisterService(&norm_service_);
    builder.RegisterService(&server_service_);
    builder.RegisterService(&echo_service_);
    builder.RegisterService(&health_service_.service());
    builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
    builder.SetMaxSendMessageSize(-1);  // the decoder bounds responses
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_concurrent_streams);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, options_.share_port ? 1 : 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               ToMs(options_.min_client_ping_interval));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ToMs(options_.keepalive_time));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ToMs(options_.keepalive_timeout));
    // For ServerService alone: its calls are rare.
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
    grpc::ResourceQuota quota("normd");
    quota.Resize(static_cast<size_t>(options_.receive_quota_bytes));
    builder.SetResourceQuota(quota);
    for (int i = 0; i < options_.threads; ++i) queues_.push_back(builder.AddCompletionQueue());

    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      server_.reset();
      for (auto& queue : queues_) CloseQueue(*queue);
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.listen));
    }
    const bool plain = options_.listen.rfind("unix:", 0) != 0;
    address_ = plain
                   ? absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port)
                   : options_.listen;
    health_.emplace(&health_service_, context_.metrics);
    context_.metrics.SetConnectionsReader(CountConnections);
    for (auto& queue : queues_) {
      QueueInbox& inbox = *inboxes_.emplace_back(std::make_unique<QueueInbox>(*queue));
      for (int i = 0; i < kArmedUnaryCalls; ++i) {
        ArmUnaryCalls(norm_service_, *queue, inbox, context_);
        ArmEchoCall(echo_service_, *queue, context_);
        if (i < kArmedStreamCalls) ArmEchoStream(echo_service_, *queue, context_);
      }
      for (int i = 0; i < kArmedStreamCalls; ++i)
        ArmStreamCall(norm_service_, *queue, inbox, context_);
      for (int i = 0; i < kArmedHealthCalls; ++i) health_service_.Arm(*queue, inbox);
      threads_.emplace_back([raw = queue.get(), &inbox] { PollQueue(*raw, inbox); });
    }
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

  void SetHealthy(bool healthy) { health_->SetHealthy(healthy); }

  absl::Status Drain() {
    if (server_ == nullptr) return absl::OkStatus();
    health_->SetDraining();
    server_service_.SetDraining();
    log_.Info("draining", {{"delay", absl::FormatDuration(options_.drain_delay)},
                           {"timeout", absl::FormatDuration(options_.drain_timeout)}});
    absl::SleepFor(options_.drain_delay);
    return Shutdown(options_.drain_timeout);
  }

 private:
  /// Of a queue that was never used.
  static void CloseQueue(grpc::ServerCompletionQueue& queue) {
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }

  /// Refuses new calls while accepted ones finish, then one grpc::Server::Shutdown: it would also
  /// wait for connections that have no call and no wish to go, and in gRPC 1.51 a second call cannot
  /// force a first one.
  absl::Status Shutdown(absl::Duration timeout) {
    if (server_ == nullptr) return absl::OkStatus();
    calls_.Stop();
    const bool finished = calls_.AwaitIdle(absl::Now() + timeout);
    const absl::Duration goodbye = finished ? std::min(kGoodbye, timeout) : absl::ZeroDuration();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + goodbye));
    // Calls keep their memory until their jobs have completed; queues may close only when no call
    // can use them any more.
    calls_.AwaitNone();
    for (auto& queue : queues_) queue->Shutdown();
    for (std::thread& thread : threads_) thread.join();
    server_.reset();
    if (finished || timeout == absl::ZeroDuration()) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("calls were cancelled at the end of ", absl::FormatDuration(timeout)));
  }

  const GrpcServerOptions options_;
  const Logger& log_;
  FailureLog failures_;
  LiveCalls calls_;
  UnsentResponses unsent_;
  const ServingContext context_;
  std::unique_ptr<Security> security_;
  std::optional<AccessControl> access_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  NormalizationAsyncService norm_service_;
  ServerService server_service_;
  EchoAsyncService echo_service_;
  HealthService health_service_{calls_};
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::unique_ptr<QueueInbox>> inboxes_;  // of each queue
  std::unique_ptr<grpc::Server> server_;
  std::optional<Health> health_;
  std::vector<std::thread> threads_;
  std::string address_;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              ServerDescription description,
                                                              Scheduler& scheduler,
                                                              Metrics& metrics, const Clock& clock,
                                                              const Logger& log) {
  auto impl =
      std::make_unique<Impl>(options, std::move(description), scheduler, metrics, clock, log);
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

const std::string& GrpcServer::address() const { return impl_->address(); }
void GrpcServer::SetHealthy(bool healthy) { impl_->SetHealthy(healthy); }
absl::Status GrpcServer::Drain() { return impl_->Drain(); }

}  // namespace norm::server
