// The .npy format of numpy (versions 1 to 3).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "norm/client/tensor.h"

namespace norm::client {

/// Reads one array. Accepted descr: f4, f8, f2 in either byte order, and for bf16 what ml_dtypes
/// writes: '<V2' ('|V2', and the name 'bfloat16'). Fortran order and big-endian data are converted
/// to C order and little-endian. Errors: NOT_FOUND, INVALID_ARGUMENT for another dtype or rank 0,
/// DATA_LOSS for a file that is not what its header says.
absl::StatusOr<Tensor> ReadNpy(const std::string& path);

/// Writes version 1.0 in C order; bf16 as '<V2', which numpy reads as raw bytes:
/// `.view(ml_dtypes.bfloat16)`.
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

}  // namespace norm::client
