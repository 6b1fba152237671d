// The list of cases that `normctl verify` runs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/normctl/comparison.h"
#include "client/normctl/op_call.h"

namespace norm::normctl {

/// What one output must be.
struct ExpectedOutput {
  std::string golden;  // file reference
  Tolerance tolerance;
  std::optional<std::string> scale;  // file reference, for ToleranceScale::kTensor
};

struct VerifyCase {
  std::string name;
  OpOptions options;
  std::map<std::string, std::string> inputs;  // tensor name to file reference
  std::map<std::string, ExpectedOutput> outputs;
};

/// Reads a manifest; file references in it are relative to its folder and returned as paths that
/// can be opened. Unknown fields are refused, so that a misspelt option cannot pass unnoticed.
///
/// { "cases": [ { "name", "op": "rms_norm|layer_norm|batch_norm", "direction": "forward|backward",
///     "options": { "eps", "weight_offset", "normalized_dims", "mode": "training|inference",
///     "layout": "nchw|nhwc",
///                  "momentum", "num_batches_tracked" },
///     "inputs": { "x": "file.npy", "weight": "file.safetensors:name", ... },
///     "outputs": { "y": { "golden": "...",
///         "tolerance": { "relative", "of": "value|element|row|channel|scale", "ulps", "scale":
///         "..." } } } } ] }
///
/// Errors: NOT_FOUND, INVALID_ARGUMENT naming the case and the field.
absl::StatusOr<std::vector<VerifyCase>> ReadManifest(const std::string& path);

}  // namespace norm::normctl
