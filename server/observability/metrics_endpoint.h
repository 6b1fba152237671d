// The metrics port: what Prometheus scrapes, what supervisors ask, and a page for people.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/observability/metrics.h"
#include "server/observability/status_report.h"

namespace norm::server {

class HttpServer;

/// Serves GET and HEAD on its own port and threads, so that who asks never holds up requests:
///
///   /metrics      Prometheus text
///   /             the status page, one file that asks for /status.json every second
///   /status.json  as StatusJson describes it
///   /readyz       200 while the server should get calls, else 503
///   /healthz      200 while it should be left alone (also while it drains), else 503
///
/// The last two follow the value that grpc.health.v1 follows, and say it: the name of the
/// ServingState and a line feed. Other paths are 404.
///
/// Ownership:  shares the counters of the Metrics it was started with; they may outlive it. Stops
/// on destruction.
class MetricsEndpoint {
 public:
  /// `listen` is host:port; port 0 takes any free one. `devices`: see DeviceStatus.
  /// Errors: INVALID_ARGUMENT when it is no host:port, UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& listen, const Metrics& metrics, std::vector<DeviceStatus> devices = {});
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// host:port with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint(std::string address, std::unique_ptr<HttpServer> server);

  std::string address_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace norm::server
