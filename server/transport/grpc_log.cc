#include "server/transport/grpc_log.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/observability/log_limiter.h"

namespace norm::server {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

/// Of the process, as gRPC's log function is.
struct Route {
  std::mutex mutex;
  const Logger* log ABSL_GUARDED_BY(mutex) = nullptr;
  LogLimiter handshakes{kInterval};
  LogLimiter others{kInterval};
  LogLimiter protobuf{kInterval};
};

Route& TheRoute() {
  static Route& route = *new Route;  // threads of gRPC may outlive main
  return route;
}

/// Said of every client that connects by an address instead of a name of the certificate, although the
/// handshake goes on with the only certificate there is; the client decides.
bool IsNoError(absl::string_view message) {
  return absl::StartsWith(message, "No match found for server name");
}

void Forward(gpr_log_func_args* line) {
  if (IsNoError(line->message)) return;
  Route& route = TheRoute();
  if (line->severity != GPR_LOG_SEVERITY_ERROR) {  // GRPC_VERBOSITY asks for it
    const std::lock_guard lock(route.mutex);
    if (route.log != nullptr) route.log->Info("grpc", {{"text", line->message}});
    return;
  }
  const std::string handshake = ExplainHandshake(line->message);
  LogLimiter& limiter = handshake.empty() ? route.others : route.handshakes;
  const std::optional<int64_t> held_back = limiter.Admit(absl::Now());
  if (!held_back.has_value()) return;
  const std::lock_guard lock(route.mutex);
  if (route.log == nullptr) return;
  if (handshake.empty()) {
    route.log->Error("grpc", {{"text", line->message}, {"held_back", absl::StrCat(*held_back)}});
  } else {
    route.log->Warning("TLS handshake failed",
                       {{"reason", handshake}, {"held_back", absl::StrCat(*held_back)}});
  }
}

/// What protobuf says of messages that it parses, such as that a string is not UTF-8.
void ForwardProtobuf(google::protobuf::LogLevel, const char* /*file*/, int /*line*/,
                     const std::string& message) {
  Route& route = TheRoute();
  const std::optional<int64_t> held_back = route.protobuf.Admit(absl::Now());
  if (!held_back.has_value()) return;
  const std::lock_guard lock(route.mutex);
  if (route.log == nullptr) return;
  route.log->Warning("protobuf", {{"text", message}, {"held_back", absl::StrCat(*held_back)}});
}

}  // namespace

std::string ExplainHandshake(absl::string_view message) {
  if (!absl::StrContains(message, "Handshake failed")) return "";
  constexpr std::pair<absl::string_view, absl::string_view> kMeanings[] = {
      {"wrong version number", "the client does not speak TLS"},
      {"http request", "the client does not speak TLS"},
      {"unsupported protocol", "the client offers no TLS version from 1.2 on"},
      {"peer did not return a certificate",
       "the client shows no certificate, which --tls_client_ca "
       "requires"},
      {"certificate verify failed",
       "the client's certificate is not of --tls_client_ca, or not valid "
       "now"},
      {"alert unknown ca", "the client does not trust this server's certificate"},
      {"alert bad certificate", "the client does not accept this server's certificate"},
      {"alert certificate expired", "the client takes this server's certificate for expired"},
      {"alert certificate unknown", "the client does not accept this server's certificate"},
  };
  for (const auto& [text, meaning] : kMeanings) {
    if (absl::StrContains(message, text)) return std::string(meaning);
  }
  return std::string(message);
}

GrpcLogLines::GrpcLogLines(const Logger& log) {
  Route& route = TheRoute();
  {
    const std::lock_guard lock(route.mutex);
    route.log = &log;
  }
  gpr_set_log_function(Forward);
  google::protobuf::SetLogHandler(ForwardProtobuf);
}

GrpcLogLines::~GrpcLogLines() {
  Route& route = TheRoute();
  const std::lock_guard lock(route.mutex);
  route.log = nullptr;
}

}  // namespace norm::server
