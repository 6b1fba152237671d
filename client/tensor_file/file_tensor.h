// The one way in which tensor bytes come out of a file.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor_file/regular_file.h"
#include "norm/client/tensor.h"

namespace norm::client {

/// The tensor whose elements lie at `offset`, little-endian and in C order. Large ones are mapped:
/// pages are read when they are used, and the file must not be cut short while the tensor lives
/// (replacing it, as WriteFile does, is no harm). Errors: as Tensor::Allocate and
/// RegularFile::ReadAt.
absl::StatusOr<Tensor> TensorFromFile(const RegularFile& file, int64_t offset, DType dtype,
                                      std::vector<int64_t> shape);

}  // namespace norm::client
