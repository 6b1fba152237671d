// One normalization by the names of its tensors: what the op subcommands and verify have in common.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "norm/client/client.h"

namespace norm::normctl {

/// Everything about a call but its tensors. Absent values mean the server's defaults.
struct OpOptions {
  Op op = Op::kRmsNorm;
  Direction direction = Direction::kForward;
  int normalized_dims = 1;
  std::optional<double> eps;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  BatchNormMode mode = BatchNormMode::kInference;
  BatchNormLayout layout = BatchNormLayout::kNchw;
  std::optional<double> momentum;
  std::optional<int64_t> num_batches_tracked;
  bool return_statistics = false;
  client::ParameterGradients gradients;
  client::Priority priority = client::Priority::kInteractive;
};

/// Tensors by the names of norm.v1: x, weight, bias, residual, dy, mean, rstd, dresidual_sum,
/// running_mean, running_var; y, residual_sum, dx, dweight, dbias.
using NamedTensors = std::map<std::string, client::Tensor>;

struct OpOutcome {
  NamedTensors outputs;
  client::Timing timing;
  absl::Duration latency;   // as the client sees it, retries included
  int64_t bytes_moved = 0;  // all inputs and outputs once
};

using OpRequest = std::variant<client::ForwardRequest, client::BackwardRequest>;

/// The request of a call; shares the memory of `inputs`. Errors: INVALID_ARGUMENT for a tensor that
/// is missing or that the op does not take.
absl::StatusOr<OpRequest> MakeRequest(const OpOptions& options, const NamedTensors& inputs);

/// Errors: as MakeRequest and the client's calls.
absl::StatusOr<OpOutcome> CallOp(client::Client& client, const OpOptions& options,
                                 const NamedTensors& inputs, absl::Duration timeout,
                                 const client::CallOptions& call_options);

}  // namespace norm::normctl
