// Looks at a listening address before gRPC does, for an error that says what is wrong.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace norm::server {

/// Tries to bind `listen` (host:port), with SO_REUSEPORT where it is `shared`, and lets go again. gRPC itself reports a failed bind as a
/// null server and a page of log. Errors: INVALID_ARGUMENT when it is no host:port or the host is
/// unknown; UNAVAILABLE with the system's reason when it cannot be bound. Addresses with a scheme
/// (unix:...) are left to gRPC.
absl::Status ProbeListenAddress(const std::string& listen, bool shared);

}  // namespace norm::server
