// Received messages as typed results around the tensor bytes in their buffers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "norm/client/requests.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::client {

using RowTensors = std::map<std::string, Tensor>;
using SharedMessage = std::shared_ptr<const wire::ReceivedMessage>;

/// The tensors keep `received` alive and copy nothing. Errors: INTERNAL when the server broke the
/// contract (a missing output, an unknown dtype, a byte count that does not match the shape).
/// `rows`: tensors that came in rows before this final response, by name.
absl::StatusOr<ForwardResult> Decode(const SharedMessage& received,
                                     const norm::v1::NormalizeResponse& message,
                                     RowTensors rows = {});
absl::StatusOr<BackwardResult> Decode(const SharedMessage& received,
                                      const norm::v1::NormalizeBackwardResponse& message,
                                      RowTensors rows = {});

}  // namespace norm::client
