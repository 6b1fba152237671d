// The checks every tensor of a request goes through, before anything is known about its role.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "norm/kernels/dtype.h"
#include "norm/v1/tensor.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::server {

/// Whether a request carries its tensors whole, or sends those that travel in rows (TravelsInRows)
/// after its header: NormalizationService.NormalizeStream, chunked requests.
enum class Transfer : uint8_t { kWhole, kInRows };

/// A tensor whose dtype is known and whose shape and byte count agree.
struct CheckedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  const wire::Payload* payload = nullptr;  // of the message it was checked against; empty in rows
};

/// Checks, in this order: dtype known, rank >= 1, dimensions >= 0, the product of the non-zero
/// dimensions times the element size fits 63 bits, byte count equal to it (in rows: none, and the
/// tensor no larger than 2^56 bytes, so that sums over tensors do not overflow). Allocates nothing
/// in proportion to the claimed shape. Errors: INVALID_ARGUMENT naming `field`, the rule and both
/// values.
absl::StatusOr<CheckedTensor> CheckTensor(absl::string_view field, const norm::v1::Tensor& tensor,
                                          const wire::ReceivedMessage& message, Transfer transfer);

}  // namespace norm::server
