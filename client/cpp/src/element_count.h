// How many elements a shape has.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "norm/kernels/dtype.h"

namespace norm::client {

/// Errors: INVALID_ARGUMENT for a shape that no tensor can have: rank 0, a negative dimension, more
/// bytes than 63 bits can count.
absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& shape, DType dtype);

}  // namespace norm::client
