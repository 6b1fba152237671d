#include "server/observability/metrics_endpoint.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "prometheus/exposer.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

// A thread waits for a silent connection until the timeout, so a few silent ones must not keep a
// scraper out for long.
std::vector<std::string> HttpOptions(const std::string& listen) {
  return {"listening_ports", listen, "num_threads", "8", "request_timeout_ms", "2000"};
}

/// Starts the HTTP library's threads with a third of the weight of those that serve requests, where
/// there is no processor for all (Linux: a thread hands its niceness down to those it starts).
std::unique_ptr<prometheus::Exposer> StartExposer(const std::string& listen) {
  return std::async(std::launch::async,
                    [&listen] {
                      (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 5);
                      return std::make_unique<prometheus::Exposer>(HttpOptions(listen));
                    })
      .get();
}

/// Connects to a port of this machine and hangs up.
void Knock(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  close(fd);
}

}  // namespace

class MetricsEndpoint::Server {
 public:
  Server(const std::string& listen, std::shared_ptr<Metrics::Impl> counters)
      : counters_(std::move(counters)), exposer_(StartExposer(listen)) {
    exposer_->RegisterCollectable(counters_, "/metrics");
    const std::vector<int> ports = exposer_->GetListeningPorts();
    port_ = ports.empty() ? 0 : ports.front();
  }

  /// The HTTP library looks for its end only between connections, or every two seconds: knocks
  /// until it has noticed.
  ~Server() {
    std::atomic<bool> stopped{false};
    std::thread knocker([&] {
      while (!stopped.load()) {
        Knock(port_);
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
    exposer_.reset();
    stopped.store(true);
    knocker.join();
  }

  int port() const { return port_; }

 private:
  // The exposer keeps a weak reference only.
  std::shared_ptr<Metrics::Impl> counters_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
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
