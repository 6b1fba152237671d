// What a client shows to servers, and asks them to show.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "norm/client/options.h"

namespace norm::client {

/// For one target: TLS as `options.tls` says, plaintext without it; every call carries the token that there is.
/// Plaintext with a token goes to this machine alone: gRPC ends connections that turn out to lead
/// elsewhere before anything is sent on them.
///
/// Errors: INVALID_ARGUMENT for files that cannot be used, for a text that is no token, for both kinds
/// of token at once, and for a token that would leave this machine unencrypted.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& target, const ClientOptions& options);

/// Whether every server that a target names is on this machine, as far as its text tells: loopback
/// addresses, localhost, Unix sockets.
bool IsOnThisMachine(const std::string& target);

}  // namespace norm::client
