// One kind of request of a load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "norm/client/requests.h"
#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"

namespace norm::normctl {

/// Row ops normalize over the last dimension. Every tensor travels with every request: the API
/// keeps no parameters.
struct LoadCase {
  Op op = Op::kRmsNorm;
  Direction direction = Direction::kForward;
  std::vector<int64_t> shape = {4, 4096};            // of x, and of dy
  DType dtype = DType::kBF16;                        // of x, and of dy
  std::optional<DType> weight_dtype = std::nullopt;  // of weight and bias; absent: dtype
  bool weight = false;
  bool bias = false;      // backward: dbias is asked for, nothing more is sent
  bool residual = false;  // row ops, forward
  bool running =
      false;  // BatchNorm training, forward: running statistics; inference has them always
  BatchNormMode mode = BatchNormMode::kTraining;
  BatchNormLayout layout = BatchNormLayout::kNchw;
  client::Priority priority = client::Priority::kInteractive;
  int64_t share = 1;  // of the requests of a mix
  int64_t sets = 1;   // different weights and biases, taken in turn

  /// The hidden size, or the channels. Valid cases only.
  int64_t parameter_size() const;
  DType parameter_dtype() const { return weight_dtype.value_or(dtype); }
  /// "layer_norm forward 4x4096 bf16 weight bias".
  std::string Name() const;
};

/// "4x4096". Errors: INVALID_ARGUMENT for anything but whole numbers of 63 bits joined by x, at
/// most 64 of them; begins with "shape: ".
absl::StatusOr<std::vector<int64_t>> ParseShape(absl::string_view text);
std::string ShapeText(const std::vector<int64_t>& shape);

/// Errors: INVALID_ARGUMENT "field: rule and values".
absl::Status Validate(const LoadCase& load_case);

}  // namespace norm::normctl
