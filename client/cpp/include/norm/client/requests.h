// Requests and results of the three normalizations. Semantics are PyTorch's;
// norm/v1/normalization.proto is the contract.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "norm/client/result_tensor.h"
#include "norm/client/tensor.h"
#include "norm/kernels/op_types.h"

namespace norm::client {

/// Who goes first when requests wait on the server: interactive ones, bulk ones with what is left
/// and a guaranteed share.
enum class Priority : uint8_t { kInteractive, kBulk };
/// "interactive", "bulk".
constexpr const char* PriorityName(Priority priority) {
  return priority == Priority::kInteractive ? "interactive" : "bulk";
}

/// y = x * rstd * (weight + weight_offset), rstd = 1 / sqrt(mean(x^2) + eps), over the trailing
/// normalized_dims of x.
struct RmsNormRequest {
  TensorView x;
  std::optional<TensorView> weight =
      std::nullopt;  // [hidden] or the normalized dimensions; absent acts as 1
  std::optional<TensorView> residual =
      std::nullopt;  // shape of x: x + residual is normalized and returned
  int normalized_dims = 1;
  double eps = 1e-6;
  double weight_offset = 0.0;  // 1 for Gemma's weights
  Rounding rounding = Rounding::kOnce;
  bool return_statistics = false;
  Priority priority = Priority::kInteractive;
};

/// y = (x - mean) * rstd * weight + bias, over the trailing normalized_dims of x; biased variance.
struct LayerNormRequest {
  TensorView x;
  std::optional<TensorView> weight = std::nullopt;
  std::optional<TensorView> bias = std::nullopt;
  std::optional<TensorView> residual = std::nullopt;
  int normalized_dims = 1;
  double eps = 1e-5;
  Rounding rounding = Rounding::kOnce;
  bool return_statistics = false;
  Priority priority = Priority::kInteractive;
};

/// Momentum weights the new value; a cumulative average uses 1 / (num_batches_tracked + 1).
struct CumulativeAverage {
  int64_t num_batches_tracked = 0;
};
using RunningAverage = std::variant<double, CumulativeAverage>;

/// y = (x - mean_c) * rstd_c * weight_c + bias_c per channel c.
struct BatchNormRequest {
  TensorView x;
  BatchNormMode mode = BatchNormMode::kTraining;
  BatchNormLayout layout = BatchNormLayout::kNchw;
  std::optional<TensorView> weight = std::nullopt;  // [channels]
  std::optional<TensorView> bias = std::nullopt;    // [channels]
  std::optional<TensorView> running_mean =
      std::nullopt;  // required in inference; in training with running_var or not at all
  std::optional<TensorView> running_var = std::nullopt;
  double eps = 1e-5;
  RunningAverage average = 0.1;
  bool return_statistics = false;
  Priority priority = Priority::kInteractive;
};

/// Which gradients of the parameters to return. bias stands for "forward had a bias".
struct ParameterGradients {
  bool weight = true;  // when a weight is given
  bool bias = false;
};

struct RmsNormBackwardRequest {
  TensorView dy;
  TensorView x;  // what forward normalized: x, or residual_sum where a residual was added
  std::optional<TensorView> weight = std::nullopt;
  std::optional<TensorView> rstd = std::nullopt;           // recomputed from x when absent
  std::optional<TensorView> dresidual_sum = std::nullopt;  // added to dx before rounding
  ParameterGradients gradients;
  int normalized_dims = 1;
  double eps = 1e-6;
  double weight_offset = 0.0;
  Priority priority = Priority::kInteractive;
};

struct LayerNormBackwardRequest {
  TensorView dy;
  TensorView x;
  std::optional<TensorView> weight = std::nullopt;
  std::optional<TensorView> mean = std::nullopt;  // with rstd or not at all
  std::optional<TensorView> rstd = std::nullopt;
  std::optional<TensorView> dresidual_sum = std::nullopt;
  ParameterGradients gradients;
  int normalized_dims = 1;
  double eps = 1e-5;
  Priority priority = Priority::kInteractive;
};

struct BatchNormBackwardRequest {
  TensorView dy;
  TensorView x;
  BatchNormMode mode = BatchNormMode::kTraining;
  BatchNormLayout layout = BatchNormLayout::kNchw;
  std::optional<TensorView> weight = std::nullopt;
  std::optional<TensorView> mean = std::nullopt;  // training: with rstd or not at all
  std::optional<TensorView> rstd = std::nullopt;
  std::optional<TensorView> running_mean = std::nullopt;  // inference only, required there
  std::optional<TensorView> running_var = std::nullopt;
  ParameterGradients gradients;
  double eps = 1e-5;
  Priority priority = Priority::kInteractive;
};

using ForwardRequest = std::variant<RmsNormRequest, LayerNormRequest, BatchNormRequest>;
using BackwardRequest =
    std::variant<RmsNormBackwardRequest, LayerNormBackwardRequest, BatchNormBackwardRequest>;

/// Where one request's time went on the server, in microseconds.
struct Timing {
  double decode_us = 0;
  double queue_us = 0;
  double copy_in_us = 0;
  double kernel_us = 0;
  double copy_out_us = 0;
  double total_us = 0;
  std::string device;
  int64_t batch_requests = 0;  // requests in the launch, this one included
  int64_t batch_rows = 0;
};

/// The optional tensors are there when the request asked for them (see the request's fields).
struct ForwardResult {
  ResultTensor y;
  std::optional<ResultTensor> mean;
  std::optional<ResultTensor> rstd;
  std::optional<ResultTensor> residual_sum;
  std::optional<ResultTensor> running_mean;
  std::optional<ResultTensor> running_var;
  Timing timing;
  int64_t message_bytes = 0;  // of the response as it came
};

struct BackwardResult {
  ResultTensor dx;  // with a residual, the gradient of x and of residual alike
  std::optional<ResultTensor> dweight;
  std::optional<ResultTensor> dbias;
  Timing timing;
  int64_t message_bytes = 0;  // of the response as it came
};

}  // namespace norm::client
