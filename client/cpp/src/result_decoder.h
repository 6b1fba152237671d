// Received messages as typed results around the tensor bytes in their buffers.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "norm/client/requests.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::client {

using SharedMessage = std::shared_ptr<const wire::ReceivedMessage>;

/// The tensors keep `received` alive and copy nothing. Errors: INTERNAL when the server broke the
/// contract (a missing output, an unknown dtype, a byte count that does not match the shape).
absl::StatusOr<ForwardResult> Decode(const SharedMessage& received,
                                     const norm::v1::NormalizeResponse& message);
absl::StatusOr<BackwardResult> Decode(const SharedMessage& received,
                                      const norm::v1::NormalizeBackwardResponse& message);

}  // namespace norm::client
