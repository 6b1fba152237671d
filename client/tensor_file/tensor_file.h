// Tensors by the name of their file, whatever its format.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tensor_file/safetensors.h"
#include "norm/client/tensor.h"

namespace norm::client {

/// Reads "x.npy", "file.safetensors:name", or "file.safetensors" when it holds one tensor. Large
/// tensors are mapped: see TensorFromFile.
absl::StatusOr<Tensor> ReadTensor(const std::string& reference);

/// Collects results and writes them: "y.npy", or "file.safetensors:name" (several names may share a
/// file, and the tensors that are in it stay). Without a name in a safetensors reference the
/// result's own name is used.
class TensorOutputs {
 public:
  /// Takes a place without a tensor, to check references before there are results. Errors:
  /// INVALID_ARGUMENT for another file name ending, or a place that is taken, by whatever spelling
  /// or link.
  absl::Status Reserve(const std::string& reference, const std::string& result_name);
  /// Errors: as Reserve.
  absl::Status Add(const std::string& reference, const std::string& result_name,
                   const Tensor& tensor);
  absl::Status Write() const;

 private:
  struct Target {
    std::string reference;
    std::string path;    // CanonicalPath
    std::string tensor;  // empty for .npy
  };

  struct SafetensorsFile {
    std::string path;  // as it was first named
    std::vector<NamedTensor> tensors;
  };

  std::vector<Target> targets_;
  std::map<std::string, Tensor> npy_;
  std::map<std::string, SafetensorsFile> safetensors_;  // by CanonicalPath
};

/// Errors: INVALID_ARGUMENT when `reference` names no .npy or .safetensors file.
absl::Status CheckReference(const std::string& reference);

}  // namespace norm::client
