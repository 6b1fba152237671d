// The HTTP endpoint that Prometheus scrapes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Serves GET /metrics on its own port and threads, so that a scrape never holds up requests.
///
/// Ownership:  shares the counters of the Metrics it was started with; they may outlive it. Stops
/// on destruction.
class MetricsEndpoint {
 public:
  /// `listen` is host:port; port 0 takes any free one.
  /// Errors: INVALID_ARGUMENT when it is no host:port, UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen,
                                                                const Metrics& metrics);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// host:port with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  class Server;
  MetricsEndpoint(std::string address, std::unique_ptr<Server> server);

  std::string address_;
  std::unique_ptr<Server> server_;
};

}  // namespace norm::server
