// gRPC's own log lines as lines of the server's log.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/observability/logging.h"

namespace norm::server {

/// While it lives, what gRPC logs (errors, unless GRPC_VERBOSITY says otherwise) goes to `log` as a
/// warning: failed TLS handshakes with what they mean, once a second at most, the rest as it is, once
/// a second at most too. gRPC has one log for a process, so one of these at a time.
///
/// Ownership:  borrows `log`. Threads of gRPC that outlive it log nothing.
class GrpcLogLines {
 public:
  explicit GrpcLogLines(const Logger& log);
  ~GrpcLogLines();
  GrpcLogLines(const GrpcLogLines&) = delete;
  GrpcLogLines& operator=(const GrpcLogLines&) = delete;
};

/// What a failed handshake means to who runs the server, for the text that gRPC 1.51 logs of it
/// ("Handshake failed with fatal error SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version
/// number."): a sentence, or the text itself when it is not known. Empty when it is about no handshake.
std::string ExplainHandshake(absl::string_view message);

}  // namespace norm::server
