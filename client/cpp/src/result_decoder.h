// Received messages as typed results that own their tensors.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "norm/client/requests.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::client {

using RowTensors = std::map<std::string, Tensor>;

/// Copies each tensor once, out of the receive buffers. Errors: INTERNAL when the server broke the
/// contract (a missing output, an unknown dtype, a byte count that does not match the shape).
/// `rows`: tensors that came in rows before this final response, by name.
absl::StatusOr<ForwardResult> Decode(const wire::ReceivedMessage& received,
                                     const norm::v1::NormalizeResponse& message,
                                     RowTensors rows = {});
absl::StatusOr<BackwardResult> Decode(const wire::ReceivedMessage& received,
                                      const norm::v1::NormalizeBackwardResponse& message,
                                      RowTensors rows = {});

}  // namespace norm::client
