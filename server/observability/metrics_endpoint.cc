#include "server/observability/metrics_endpoint.h"

#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "prometheus/text_serializer.h"
#include "server/observability/http_server.h"
#include "server/observability/metrics_impl.h"
#include "server/observability/status_page.h"

namespace norm::server {
namespace {

/// A word that the page's own style and script carry and nobody can foresee.
std::string Nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&nonce, absl::Hex(random(), absl::kZeroPad8));
  return nonce;
}

HttpReply Page() {
  const std::string nonce = Nonce();
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.security_policy =
      absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                   "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'");
  reply.body = absl::StrReplaceAll(kStatusPage, {{"NONCE", nonce}});
  return reply;
}

/// What a supervisor asks: `good` decides, `state` is told.
HttpReply Probe(bool good, ServingState state) {
  HttpReply reply;
  reply.status = good ? 200 : 503;
  reply.body = absl::StrCat(ServingStateName(state), "\n");
  return reply;
}

HttpReply Answer(absl::string_view path, const Metrics::Impl& metrics,
                 const std::vector<DeviceStatus>& devices) {
  const ServingState state = metrics.serving_state;
  if (path == "/readyz") return Probe(IsReady(state), state);
  if (path == "/healthz") return Probe(IsLive(state), state);
  if (path == "/") return Page();
  HttpReply reply;
  if (path == "/metrics") {
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = prometheus::TextSerializer().Serialize(metrics.Collect());
  } else if (path == "/status.json") {
    reply.content_type = "application/json";
    reply.body = StatusJson(metrics, devices, absl::Now());
  } else {
    reply.status = 404;
    reply.body = "here are /, /metrics, /status.json, /healthz and /readyz\n";
  }
  return reply;
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(std::string address, std::unique_ptr<HttpServer> server)
    : address_(std::move(address)), server_(std::move(server)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, const Metrics& metrics, std::vector<DeviceStatus> devices) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(listen).substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", listen, "' is not host:port"));
  }
  auto server = HttpServer::Start(
      listen, [counters = metrics.impl(), devices = std::move(devices)](absl::string_view path) {
        return Answer(path, *counters, devices);
      });
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("metrics address: ", server.status().message()));
  }
  std::string address = absl::StrCat(listen.substr(0, colon), ":", (*server)->port());
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::move(address), *std::move(server)));
}

}  // namespace norm::server
