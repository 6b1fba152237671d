// The safetensors format.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "norm/client/tensor.h"

namespace norm::client {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Names of all tensors in a file, in order of their data. Errors: as ReadSafetensors.
absl::StatusOr<std::vector<std::string>> ListSafetensors(const std::string& path);

/// Reads one tensor (F32, F16, BF16 or F64); the rest of the file is checked and not read.
/// Errors: NOT_FOUND for the file or the name, INVALID_ARGUMENT for another dtype or rank 0,
/// DATA_LOSS for a header that is not well formed, names a tensor twice, or whose ranges overlap,
/// leave gaps, do not match their shapes or the file's size.
absl::StatusOr<Tensor> ReadSafetensors(const std::string& path, const std::string& name);

/// Errors: INVALID_ARGUMENT for a name given twice.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

/// Adds or replaces tensors; the others of the file and its metadata stay, whatever their dtypes. A
/// missing file is made. Errors: as WriteSafetensors, and DATA_LOSS for a file that ReadSafetensors
/// refuses; it stays as it is. The last of two that update a file at once wins.
absl::Status UpdateSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace norm::client
