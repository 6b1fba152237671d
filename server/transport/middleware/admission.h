// Refuses before any decoding what cannot be served: the server is stopping, the deadline has
// passed, or the connection does not read what it has been answered.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// A gRPC deadline on the Clock's time line; InfiniteFuture when the call has none.
absl::Time ToDeadline(std::chrono::system_clock::time_point deadline);

/// The flow (Job::flow) of a call: its connection, by gRPC's name of the peer. There is no standard
/// metadata that names a client, and one that a client chooses would let it be many. Connections
/// over a Unix socket have no name of their own and are one flow. A hash: two connections that
/// collide share their part.
uint64_t FlowOf(const grpc::ServerContext& call);

/// Errors: UNAVAILABLE when the server is stopping, and as UnsentResponses::Check;
///         DEADLINE_EXCEEDED when `deadline` <= `now`. All are counted.
absl::Status Admit(const ServingContext& context, uint64_t flow, absl::Time deadline,
                   absl::Time now);

}  // namespace norm::server
