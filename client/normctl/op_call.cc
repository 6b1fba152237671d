#include "client/normctl/op_call.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace norm::normctl {
namespace {

using client::TensorView;

constexpr double kRmsNormEps = 1e-6;
constexpr double kDefaultEps = 1e-5;
constexpr double kDefaultMomentum = 0.1;

/// Hands out the named inputs and knows which were not asked for.
class Inputs {
 public:
  explicit Inputs(const NamedTensors& tensors) : tensors_(tensors) {}

  std::optional<TensorView> Take(const std::string& name) {
    taken_.insert(name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return found->second.view();
  }

  /// Errors: a name that no Take asked for.
  absl::Status CheckAllTaken(const OpOptions& options) const {
    for (const auto& [name, tensor] : tensors_) {
      if (!taken_.contains(name)) {
        return absl::InvalidArgumentError(absl::StrCat(
            OpName(options.op), " ", DirectionName(options.direction), " takes no ", name));
      }
    }
    return absl::OkStatus();
  }

 private:
  const NamedTensors& tensors_;
  std::set<std::string> taken_;
};

client::RunningAverage Average(const OpOptions& options) {
  if (options.num_batches_tracked.has_value())
    return client::CumulativeAverage{*options.num_batches_tracked};
  return options.momentum.value_or(kDefaultMomentum);
}

client::ForwardRequest Forward(const OpOptions& options, const TensorView& x, Inputs& inputs) {
  switch (options.op) {
    case Op::kRmsNorm:
      return client::RmsNormRequest{.x = x,
                                    .weight = inputs.Take("weight"),
                                    .residual = inputs.Take("residual"),
                                    .normalized_dims = options.normalized_dims,
                                    .eps = options.eps.value_or(kRmsNormEps),
                                    .weight_offset = options.weight_offset,
                                    .rounding = options.rounding,
                                    .return_statistics = options.return_statistics};
    case Op::kLayerNorm:
      return client::LayerNormRequest{.x = x,
                                      .weight = inputs.Take("weight"),
                                      .bias = inputs.Take("bias"),
                                      .residual = inputs.Take("residual"),
                                      .normalized_dims = options.normalized_dims,
                                      .eps = options.eps.value_or(kDefaultEps),
                                      .rounding = options.rounding,
                                      .return_statistics = options.return_statistics};
    case Op::kBatchNorm:
      break;
  }
  return client::BatchNormRequest{.x = x,
                                  .mode = options.mode,
                                  .layout = options.layout,
                                  .weight = inputs.Take("weight"),
                                  .bias = inputs.Take("bias"),
                                  .running_mean = inputs.Take("running_mean"),
                                  .running_var = inputs.Take("running_var"),
                                  .eps = options.eps.value_or(kDefaultEps),
                                  .average = Average(options),
                                  .return_statistics = options.return_statistics};
}

client::BackwardRequest Backward(const OpOptions& options, const TensorView& dy,
                                 const TensorView& x, Inputs& inputs) {
  switch (options.op) {
    case Op::kRmsNorm:
      return client::RmsNormBackwardRequest{.dy = dy,
                                            .x = x,
                                            .weight = inputs.Take("weight"),
                                            .rstd = inputs.Take("rstd"),
                                            .dresidual_sum = inputs.Take("dresidual_sum"),
                                            .gradients = options.gradients,
                                            .normalized_dims = options.normalized_dims,
                                            .eps = options.eps.value_or(kRmsNormEps),
                                            .weight_offset = options.weight_offset};
    case Op::kLayerNorm:
      return client::LayerNormBackwardRequest{.dy = dy,
                                              .x = x,
                                              .weight = inputs.Take("weight"),
                                              .mean = inputs.Take("mean"),
                                              .rstd = inputs.Take("rstd"),
                                              .dresidual_sum = inputs.Take("dresidual_sum"),
                                              .gradients = options.gradients,
                                              .normalized_dims = options.normalized_dims,
                                              .eps = options.eps.value_or(kDefaultEps)};
    case Op::kBatchNorm:
      break;
  }
  return client::BatchNormBackwardRequest{.dy = dy,
                                          .x = x,
                                          .mode = options.mode,
                                          .layout = options.layout,
                                          .weight = inputs.Take("weight"),
                                          .mean = inputs.Take("mean"),
                                          .rstd = inputs.Take("rstd"),
                                          .running_mean = inputs.Take("running_mean"),
                                          .running_var = inputs.Take("running_var"),
                                          .gradients = options.gradients,
                                          .eps = options.eps.value_or(kDefaultEps)};
}

/// Copies the tensors of a result, which may be absent, and keeps the first error.
class Outputs {
 public:
  void Take(const char* name, const std::optional<client::ResultTensor>& tensor) {
    if (!tensor.has_value() || !status_.ok()) return;
    absl::StatusOr<client::Tensor> copy = tensor->ToTensor();
    status_ = copy.status();
    if (copy.ok()) tensors_.emplace(name, *std::move(copy));
  }

  absl::StatusOr<OpOutcome> Finish(client::Timing timing) && {
    if (!status_.ok()) return status_;
    OpOutcome outcome;
    outcome.outputs = std::move(tensors_);
    outcome.timing = std::move(timing);
    return outcome;
  }

 private:
  NamedTensors tensors_;
  absl::Status status_;
};

absl::StatusOr<OpOutcome> FromResult(client::ForwardResult result) {
  Outputs outputs;
  outputs.Take("y", result.y);
  outputs.Take("mean", result.mean);
  outputs.Take("rstd", result.rstd);
  outputs.Take("residual_sum", result.residual_sum);
  outputs.Take("running_mean", result.running_mean);
  outputs.Take("running_var", result.running_var);
  return std::move(outputs).Finish(std::move(result.timing));
}

absl::StatusOr<OpOutcome> FromResult(client::BackwardResult result) {
  Outputs outputs;
  outputs.Take("dx", result.dx);
  outputs.Take("dweight", result.dweight);
  outputs.Take("dbias", result.dbias);
  return std::move(outputs).Finish(std::move(result.timing));
}

template <typename Call>
absl::StatusOr<OpOutcome> Measure(const NamedTensors& inputs, Call call) {
  const absl::Time start = absl::Now();
  auto result = call();
  const absl::Duration latency = absl::Now() - start;
  if (!result.ok()) return result.status();
  absl::StatusOr<OpOutcome> outcome = FromResult(*std::move(result));
  if (!outcome.ok()) return outcome;
  outcome->latency = latency;
  for (const auto& [name, tensor] : inputs)
    outcome->bytes_moved += static_cast<int64_t>(tensor.bytes().size());
  for (const auto& [name, tensor] : outcome->outputs)
    outcome->bytes_moved += static_cast<int64_t>(tensor.bytes().size());
  return outcome;
}

}  // namespace

absl::StatusOr<OpRequest> MakeRequest(const OpOptions& options, const NamedTensors& inputs) {
  Inputs named(inputs);
  const std::optional<TensorView> x = named.Take("x");
  if (!x.has_value()) return absl::InvalidArgumentError("no x was given");
  std::optional<OpRequest> request;
  if (options.direction == Direction::kForward) {
    request = Forward(options, *x, named);
  } else {
    const std::optional<TensorView> dy = named.Take("dy");
    if (!dy.has_value()) return absl::InvalidArgumentError("no dy was given for backward");
    request = Backward(options, *dy, *x, named);
  }
  if (absl::Status status = named.CheckAllTaken(options); !status.ok()) return status;
  const auto set_priority = [&](auto& typed) { typed.priority = options.priority; };
  std::visit([&](auto& of_direction) { std::visit(set_priority, of_direction); }, *request);
  return *std::move(request);
}

absl::StatusOr<OpOutcome> CallOp(client::Client& client, const OpOptions& options,
                                 const NamedTensors& inputs, absl::Duration timeout,
                                 const client::CallOptions& call_options) {
  const absl::StatusOr<OpRequest> request = MakeRequest(options, inputs);
  if (!request.ok()) return request.status();
  if (const auto* forward = std::get_if<client::ForwardRequest>(&*request)) {
    return Measure(inputs, [&] { return client.Normalize(*forward, timeout, call_options); });
  }
  const auto& backward = std::get<client::BackwardRequest>(*request);
  return Measure(inputs, [&] { return client.NormalizeBackward(backward, timeout, call_options); });
}

}  // namespace norm::normctl
