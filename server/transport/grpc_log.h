// Log lines of gRPC and protobuf as lines of the server's log.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/observability/logging.h"

namespace norm::server {

/// While it lives, errors that gRPC logs go to `log`, which writes text and JSON alike: failed TLS
/// handshakes as a warning that says what they mean, the rest as it is, each kind once a second at most; what
/// protobuf says of messages, which anybody may send, likewise; and what else GRPC_VERBOSITY asks for.
/// gRPC 1.51 does not name the peer of a handshake. It has one log for a process, so there is one of
/// these at a time.
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
