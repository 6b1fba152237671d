#include "server/transport/request_decoder.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/codec/dtype_mapping.h"
#include "server/transport/field_error.h"
#include "server/transport/job_builder.h"
#include "server/transport/op_options.h"
#include "server/transport/tensor_check.h"

namespace norm::server {
namespace {

RequestTensors TensorsOf(const norm::v1::NormalizeRequest& request) {
  RequestTensors tensors{};
  const auto set = [&tensors](TensorRole role, bool present, const norm::v1::Tensor& tensor) {
    if (present) tensors[static_cast<size_t>(role)] = &tensor;
  };
  set(TensorRole::kX, request.has_x(), request.x());
  set(TensorRole::kWeight, request.has_weight(), request.weight());
  set(TensorRole::kBias, request.has_bias(), request.bias());
  set(TensorRole::kResidual, request.has_residual(), request.residual());
  set(TensorRole::kRunningMean, request.has_running_mean(), request.running_mean());
  set(TensorRole::kRunningVar, request.has_running_var(), request.running_var());
  return tensors;
}

RequestTensors TensorsOf(const norm::v1::NormalizeBackwardRequest& request) {
  RequestTensors tensors{};
  const auto set = [&tensors](TensorRole role, bool present, const norm::v1::Tensor& tensor) {
    if (present) tensors[static_cast<size_t>(role)] = &tensor;
  };
  set(TensorRole::kDy, request.has_dy(), request.dy());
  set(TensorRole::kX, request.has_x(), request.x());
  set(TensorRole::kWeight, request.has_weight(), request.weight());
  set(TensorRole::kMean, request.has_mean(), request.mean());
  set(TensorRole::kRstd, request.has_rstd(), request.rstd());
  set(TensorRole::kDresidualSum, request.has_dresidual_sum(), request.dresidual_sum());
  set(TensorRole::kRunningMean, request.has_running_mean(), request.running_mean());
  set(TensorRole::kRunningVar, request.has_running_var(), request.running_var());
  return tensors;
}

absl::Status CheckWeightOffset(JobBuilder& builder) {
  if (builder.problem().weight_offset == 0.0 || builder.Has(TensorRole::kWeight)) {
    return absl::OkStatus();
  }
  return InvalidField(
      "rms_norm.weight_offset",
      absl::StrCat(builder.problem().weight_offset, " needs a weight: without one it must be 0"));
}

absl::Status BuildRowForward(const norm::v1::NormalizeRequest& request, JobBuilder& builder) {
  NormProblem& problem = builder.problem();
  absl::Status status;
  if (problem.op == Op::kRmsNorm) {
    status.Update(builder.Refuse(TensorRole::kBias, "rms_norm has none"));
  }
  status.Update(builder.Refuse(TensorRole::kRunningMean, "only batch_norm takes it"));
  status.Update(builder.Refuse(TensorRole::kRunningVar, "only batch_norm takes it"));
  status.Update(builder.TakeX());
  if (!status.ok()) return status;
  status.Update(builder.TakeParameter(TensorRole::kWeight));
  status.Update(builder.TakeParameter(TensorRole::kBias));
  status.Update(builder.TakeLikeX(TensorRole::kResidual));
  status.Update(CheckWeightOffset(builder));
  problem.outputs.Add(TensorRole::kY);
  if (builder.Has(TensorRole::kResidual)) problem.outputs.Add(TensorRole::kResidualSum);
  if (request.return_statistics()) {
    problem.outputs.Add(TensorRole::kRstd);
    if (problem.op == Op::kLayerNorm) problem.outputs.Add(TensorRole::kMean);
  }
  return status;
}

absl::Status BuildBatchNormForward(const norm::v1::NormalizeRequest& request, JobBuilder& builder) {
  NormProblem& problem = builder.problem();
  const bool training = problem.batch_norm_mode == BatchNormMode::kTraining;
  absl::Status status = builder.Refuse(TensorRole::kResidual, "batch_norm takes none");
  status.Update(builder.TakeX());
  if (!status.ok()) return status;
  status.Update(builder.TakeParameter(TensorRole::kWeight));
  status.Update(builder.TakeParameter(TensorRole::kBias));
  if (training) {
    status.Update(builder.RequirePair(TensorRole::kRunningMean, TensorRole::kRunningVar));
  } else {
    status.Update(builder.Require(TensorRole::kRunningMean, "inference mode needs it"));
    status.Update(builder.Require(TensorRole::kRunningVar, "inference mode needs it"));
  }
  status.Update(builder.TakeStatistics(TensorRole::kRunningMean));
  status.Update(builder.TakeStatistics(TensorRole::kRunningVar));
  problem.outputs.Add(TensorRole::kY);
  if (request.return_statistics()) {
    problem.outputs.Add(TensorRole::kRstd);
    if (training) problem.outputs.Add(TensorRole::kMean);
  }
  if (training && builder.Has(TensorRole::kRunningMean)) {
    problem.outputs.Add(TensorRole::kRunningMean);
    problem.outputs.Add(TensorRole::kRunningVar);
  }
  return status;
}

absl::Status BuildRowBackward(JobBuilder& builder) {
  NormProblem& problem = builder.problem();
  absl::Status status = builder.Refuse(TensorRole::kRunningMean, "only batch_norm takes it");
  status.Update(builder.Refuse(TensorRole::kRunningVar, "only batch_norm takes it"));
  if (problem.op == Op::kRmsNorm) {
    status.Update(builder.Refuse(TensorRole::kMean, "rms_norm has none"));
  } else {
    status.Update(builder.RequirePair(TensorRole::kMean, TensorRole::kRstd));
  }
  status.Update(builder.TakeX());
  if (!status.ok()) return status;
  status.Update(builder.Require(TensorRole::kDy, "backward needs it"));
  status.Update(builder.TakeLikeX(TensorRole::kDy));
  status.Update(builder.TakeParameter(TensorRole::kWeight));
  status.Update(builder.TakeStatistics(TensorRole::kMean));
  status.Update(builder.TakeStatistics(TensorRole::kRstd));
  status.Update(builder.TakeLikeX(TensorRole::kDresidualSum));
  status.Update(CheckWeightOffset(builder));
  return status;
}

absl::Status BuildBatchNormBackward(JobBuilder& builder) {
  const bool training = builder.problem().batch_norm_mode == BatchNormMode::kTraining;
  absl::Status status = builder.Refuse(TensorRole::kDresidualSum, "batch_norm takes none");
  if (training) {
    status.Update(builder.Refuse(TensorRole::kRunningMean, "only inference mode takes it"));
    status.Update(builder.Refuse(TensorRole::kRunningVar, "only inference mode takes it"));
    status.Update(builder.RequirePair(TensorRole::kMean, TensorRole::kRstd));
  } else {
    status.Update(builder.Refuse(TensorRole::kMean, "inference mode uses running_mean"));
    status.Update(builder.Refuse(TensorRole::kRstd, "inference mode uses running_var"));
    status.Update(builder.Require(TensorRole::kRunningMean, "inference mode needs it"));
    status.Update(builder.Require(TensorRole::kRunningVar, "inference mode needs it"));
  }
  status.Update(builder.TakeX());
  if (!status.ok()) return status;
  status.Update(builder.Require(TensorRole::kDy, "backward needs it"));
  status.Update(builder.TakeLikeX(TensorRole::kDy));
  status.Update(builder.TakeParameter(TensorRole::kWeight));
  for (const TensorRole role :
       {TensorRole::kMean, TensorRole::kRstd, TensorRole::kRunningMean, TensorRole::kRunningVar}) {
    status.Update(builder.TakeStatistics(role));
  }
  return status;
}

template <typename Request>
absl::Status ReadPriority(const Request& request, Priority* priority) {
  switch (request.priority()) {
    case norm::v1::PRIORITY_INTERACTIVE:
      *priority = Priority::kInteractive;
      return absl::OkStatus();
    case norm::v1::PRIORITY_BULK:
      *priority = Priority::kBulk;
      return absl::OkStatus();
    default:
      return InvalidField("priority", absl::StrCat(static_cast<int>(request.priority()),
                                                   " is not a known priority (0, 1)"));
  }
}

template <typename Request>
std::optional<RequestKind> KindOfAny(const Request& request) {
  const std::optional<DType> dtype = wire::FromProto(request.x().dtype());
  if (!dtype.has_value()) return std::nullopt;
  switch (request.op_case()) {
    case Request::kRmsNorm:
      return RequestKind{Op::kRmsNorm, *dtype};
    case Request::kLayerNorm:
      return RequestKind{Op::kLayerNorm, *dtype};
    case Request::kBatchNorm:
      return RequestKind{Op::kBatchNorm, *dtype};
    case Request::OP_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> DecodeRequest(const norm::v1::NormalizeRequest& request,
                                                   const wire::ReceivedMessage& message,
                                                   const DecodeLimits& limits, Transfer transfer) {
  const RequestTensors tensors = TensorsOf(request);
  JobBuilder builder(tensors, message, transfer);
  NormProblem& problem = builder.problem();
  problem.direction = Direction::kForward;
  absl::Status status = ReadPriority(request, builder.priority());
  status.Update(ReadOpOptions(request, &problem, builder.normalized_dims()));
  if (!status.ok()) return status;
  status = problem.op == Op::kBatchNorm ? BuildBatchNormForward(request, builder)
                                        : BuildRowForward(request, builder);
  if (!status.ok()) return status;
  status = builder.CheckOutputs(limits.max_output_bytes);
  if (!status.ok()) return status;
  return builder.Build();
}

absl::StatusOr<std::unique_ptr<Job>> DecodeRequest(
    const norm::v1::NormalizeBackwardRequest& request, const wire::ReceivedMessage& message,
    const DecodeLimits& limits, Transfer transfer) {
  const RequestTensors tensors = TensorsOf(request);
  JobBuilder builder(tensors, message, transfer);
  NormProblem& problem = builder.problem();
  problem.direction = Direction::kBackward;
  absl::Status status = ReadPriority(request, builder.priority());
  status.Update(ReadOpOptions(request, &problem, builder.normalized_dims()));
  if (!status.ok()) return status;
  if (problem.op == Op::kRmsNorm && request.has_bias()) {
    return InvalidField("has_bias", "is true, but rms_norm has no bias");
  }
  status =
      problem.op == Op::kBatchNorm ? BuildBatchNormBackward(builder) : BuildRowBackward(builder);
  if (!status.ok()) return status;
  problem.outputs.Add(TensorRole::kDx);
  if (builder.Has(TensorRole::kWeight) && !request.omit_dweight()) {
    problem.outputs.Add(TensorRole::kDweight);
  }
  if (request.has_bias() && !request.omit_dbias()) problem.outputs.Add(TensorRole::kDbias);
  status = builder.CheckOutputs(limits.max_output_bytes);
  if (!status.ok()) return status;
  return builder.Build();
}

std::optional<RequestKind> KindOf(const norm::v1::NormalizeRequest& request) {
  return KindOfAny(request);
}

std::optional<RequestKind> KindOf(const norm::v1::NormalizeBackwardRequest& request) {
  return KindOfAny(request);
}

}  // namespace norm::server
