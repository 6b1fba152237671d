// grpc::Status of a finished call as absl::Status.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "norm/v1/tensor.pb.h"

namespace norm::client {

/// Whether the channel of a call had a connection when the call ended.
enum class Connection { kUp, kDown };

/// The status of a finished call: the server's code and message, google.rpc details as payloads,
/// and a mark where no server answered (IsServerUnreachable). CANCELLED, which a server sends only
/// to a caller that left, is UNAVAILABLE: whoever cancels a call of this client knows it. gRPC 1.51
/// ends calls so that meet a server's Shutdown. So is an HTTP/2 reset, which gRPC calls INTERNAL: a
/// proxy's word for a server that is gone.
absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context,
                          Connection connection);

/// A status that travelled inside a stream message.
absl::Status ToAbslStatus(const norm::v1::Status& status);

/// The grpc-retry-pushback-ms trailer. A value that is no number forbids another try, as a negative
/// one does.
std::optional<absl::Duration> RetryPushback(const grpc::ClientContext& context);
/// What a google.rpc.RetryInfo among the details of a status says.
std::optional<absl::Duration> RetryPushback(const absl::Status& status);

}  // namespace norm::client
