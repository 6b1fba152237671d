#include "server/observability/metrics_endpoint.h"

#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "prometheus/exposer.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

constexpr size_t kThreads = 2;

}  // namespace

class MetricsEndpoint::Server {
 public:
  Server(const std::string& listen, std::shared_ptr<Metrics::Impl> counters)
      : counters_(std::move(counters)), exposer_(listen, kThreads) {
    exposer_.RegisterCollectable(counters_, "/metrics");
  }

  int port() const {
    const std::vector<int> ports = exposer_.GetListeningPorts();
    return ports.empty() ? 0 : ports.front();
  }

 private:
  // The exposer keeps a weak reference only.
  std::shared_ptr<Metrics::Impl> counters_;
  prometheus::Exposer exposer_;
};

MetricsEndpoint::MetricsEndpoint(std::string address, std::unique_ptr<Server> server)
    : address_(std::move(address)), server_(std::move(server)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(listen).substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", listen, "' is not host:port"));
  }
  // The HTTP library reports a port that cannot be bound by an exception.
  try {
    auto server = std::make_unique<Server>(listen, metrics.impl());
    std::string address = absl::StrCat(listen.substr(0, colon), ":", server->port());
    return std::unique_ptr<MetricsEndpoint>(
        new MetricsEndpoint(std::move(address), std::move(server)));
  } catch (const std::exception&) {
    return absl::UnavailableError(absl::StrCat("cannot listen on metrics address ", listen,
                                               ": the port is taken or not permitted"));
  }
}

}  // namespace norm::server
