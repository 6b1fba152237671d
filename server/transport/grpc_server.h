// The gRPC server: owns completion queues, threads and services; starts and drains them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/observability/span_log.h"
#include "server/scheduler/clock.h"
#include "server/scheduler/scheduler.h"
#include "server/security/security.h"
#include "server/transport/server_description.h"

namespace norm::server {

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port, port 0 takes any free one
  bool share_port = false;             // with other processes that ask for it: SO_REUSEPORT
  int threads = 4;                     // completion queues of the data path, one thread each
  int64_t max_message_bytes = int64_t{256} << 20;
  /// Memory gRPC's transports may hold; it kills calls beyond, so it must be larger than a message.
  int64_t receive_quota_bytes = int64_t{2} << 30;
  int max_concurrent_streams = 256;  // calls per connection
  int64_t max_stream_requests = 128;
  int64_t max_stream_unsent_bytes = int64_t{64} << 20;
  int64_t max_stream_uploads = 64;
  int64_t stream_window_bytes = int64_t{64} << 20;
  absl::Duration stream_stall_timeout = absl::Seconds(30);
  int64_t max_unsent_bytes = int64_t{1} << 30;
  absl::Duration write_timeout = absl::Minutes(1);
  /// Clients may ping this often, also without calls; faster ones are disconnected.
  absl::Duration min_client_ping_interval = absl::Seconds(5);
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration drain_delay = absl::ZeroDuration();
  absl::Duration drain_timeout = absl::Seconds(25);
  SecurityOptions security;  // plaintext, open to everybody
  SpanLog* spans = nullptr;  // borrowed; null: no spans are recorded
};

/// Serves NormalizationService, ServerService, EchoService, grpc.health.v1 and reflection.
///
/// Ownership:  borrows scheduler, metrics, clock and log, which must outlive it. Destruction drains
///             without delay.
/// Threads:    SetHealthy and Drain may be called from any thread; Drain once at a time.
class GrpcServer {
 public:
  /// Errors: INVALID_ARGUMENT for a bad address or a file of `options.security` that cannot be used,
  /// UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           ServerDescription description,
                                                           Scheduler& scheduler, Metrics& metrics,
                                                           const Clock& clock, const Logger& log);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  /// host:port with the port that was bound.
  const std::string& address() const;

  /// Health of "" and of each service, and normd_ready: SERVING while healthy and not draining;
  /// "liveness": while healthy. A server starts NOT_SERVING.
  void SetHealthy(bool healthy);

  /// Health NOT_SERVING at once; serves for options.drain_delay more; then refuses new calls, ends
  /// idle streams and waits for accepted work. Returns when nothing is left. Errors:
  /// DEADLINE_EXCEEDED when calls had to be cancelled at the end of options.drain_timeout.
  absl::Status Drain();

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace norm::server
