// Looks at a listening address before gRPC does, for an error that says what is wrong.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace norm::server {

using SocketAddress = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// The address that `listen` (host:port, an IPv6 host in brackets) names. Errors: INVALID_ARGUMENT
/// when it is no host:port or the host is unknown.
absl::StatusOr<SocketAddress> ResolveListenAddress(const std::string& listen);

/// Whether `listen` names an address that is not a loopback one, so that other machines may reach it.
/// False for what cannot be resolved: nothing can be bound there either.
bool ReachesBeyondLoopback(const std::string& listen);

/// A socket bound to it, with SO_REUSEPORT where it is `shared`; the caller closes it. Errors:
/// UNAVAILABLE with the system's reason, naming `listen`.
absl::StatusOr<int> BindSocket(const addrinfo& address, const std::string& listen, bool shared);

/// Tries to bind `listen` and lets go again. gRPC itself reports a failed bind as a null server and a
/// page of log. Errors: those of the two above. Addresses with a scheme (unix:...) are left to gRPC.
absl::Status ProbeListenAddress(const std::string& listen, bool shared);

}  // namespace norm::server
