// absl::Status to what a client sees: the only place where one becomes the other.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "norm/v1/tensor.pb.h"

namespace norm::server {

/// The status as google.rpc.Status spells it: code, message, and details. INVALID_ARGUMENT that
/// names a field carries google.rpc.BadRequest, UNAVAILABLE google.rpc.RetryInfo.
norm::v1::Status ToProtoStatus(const absl::Status& status);

/// The status of a call, with the serialized ToProtoStatus for the trailer grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

/// How long a client should wait before it tries again: what the scheduler said, else a default,
/// for UNAVAILABLE; nothing for other codes. For RetryInfo and the trailer grpc-retry-pushback-ms.
std::optional<absl::Duration> Pushback(const absl::Status& status);

/// Name of that trailer (gRFC A6).
inline constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

}  // namespace norm::server
