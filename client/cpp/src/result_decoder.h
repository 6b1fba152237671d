// Received messages as typed results that own their tensors.
#pragma once

#include "absl/status/statusor.h"
#include "norm/client/requests.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::client {

/// Copies each tensor once, out of the receive buffers. Errors: INTERNAL when the server broke the
/// contract (a missing output, an unknown dtype, a byte count that does not match the shape).
absl::StatusOr<ForwardResult> Decode(const wire::ReceivedMessage& received,
                                     const norm::v1::NormalizeResponse& message);
absl::StatusOr<BackwardResult> Decode(const wire::ReceivedMessage& received,
                                      const norm::v1::NormalizeBackwardResponse& message);

}  // namespace norm::client
