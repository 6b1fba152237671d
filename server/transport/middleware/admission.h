// Refuses before any decoding what cannot be served: the deadline has passed, or the server is
// stopping.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// A gRPC deadline on the Clock's time line; InfiniteFuture when the call has none.
absl::Time ToDeadline(std::chrono::system_clock::time_point deadline);

/// Errors: UNAVAILABLE when the server is stopping; DEADLINE_EXCEEDED when `deadline` <= `now`.
/// Both are counted.
absl::Status Admit(const ServingContext& context, absl::Time deadline, absl::Time now);

}  // namespace norm::server
