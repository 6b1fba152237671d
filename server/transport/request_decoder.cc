#include "server/transport/request_decoder.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "server/transport/field_error.h"
#include "server/transport/op_options.h"
#include "server/transport/tensor_check.h"

namespace norm::server {
namespace {

using Tensors = std::array<const norm::v1::Tensor*, kTensorRoleCount>;

size_t Index(TensorRole role) { return static_cast<size_t>(role); }

Tensors TensorsOf(const norm::v1::NormalizeRequest& request) {
  Tensors tensors{};
  const auto set = [&tensors](TensorRole role, bool present, const norm::v1::Tensor& tensor) {
    if (present) tensors[Index(role)] = &tensor;
  };
  set(TensorRole::kX, request.has_x(), request.x());
  set(TensorRole::kWeight, request.has_weight(), request.weight());
  set(TensorRole::kBias, request.has_bias(), request.bias());
  set(TensorRole::kResidual, request.has_residual(), request.residual());
  set(TensorRole::kRunningMean, request.has_running_mean(), request.running_mean());
  set(TensorRole::kRunningVar, request.has_running_var(), request.running_var());
  return tensors;
}

Tensors TensorsOf(const norm::v1::NormalizeBackwardRequest& request) {
  Tensors tensors{};
  const auto set = [&tensors](TensorRole role, bool present, const norm::v1::Tensor& tensor) {
    if (present) tensors[Index(role)] = &tensor;
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

int64_t Product(absl::Span<const int64_t> dimensions) {
  int64_t product = 1;
  for (const int64_t dimension : dimensions) product *= dimension;
  return product;
}

/// Builds one job, tensor by tensor. Every method stops at the first violation.
class JobBuilder {
 public:
  JobBuilder(const Tensors& tensors, const wire::ReceivedMessage& message)
      : tensors_(tensors), message_(message), job_(std::make_unique<Job>()) {}

  NormProblem& problem() { return job_->problem; }
  int* normalized_dims() { return &normalized_dims_; }
  bool Has(TensorRole role) const { return tensors_[Index(role)] != nullptr; }
  std::unique_ptr<Job> Take() { return std::move(job_); }

  /// Takes x and derives rows, hidden_size and the BatchNorm shape from it.
  absl::Status TakeX() {
    auto x = Take(TensorRole::kX);
    if (!x.ok()) return x.status();
    x_shape_ = x->shape;
    problem().dtype = x->dtype;
    problem().weight_dtype = StatisticsDType(x->dtype);
    return problem().op == Op::kBatchNorm ? ReadBatchNormShape() : ReadRowShape();
  }

  /// A tensor of the shape and dtype of x, when present.
  absl::Status TakeLikeX(TensorRole role) {
    if (!Has(role)) return absl::OkStatus();
    auto tensor = Take(role);
    if (!tensor.ok()) return tensor.status();
    if (absl::Status status = CheckDType(role, tensor->dtype, problem().dtype, "of x");
        !status.ok()) {
      return status;
    }
    if (tensor->shape != x_shape_) {
      return InvalidField(Name(role, ".shape"), absl::StrCat(ShapeText(tensor->shape), " != shape ",
                                                             ShapeText(x_shape_), " of x"));
    }
    return absl::OkStatus();
  }

  /// weight or bias, when present.
  absl::Status TakeParameter(TensorRole role) {
    if (!Has(role)) return absl::OkStatus();
    auto tensor = Take(role);
    if (!tensor.ok()) return tensor.status();
    if (!IsSupportedWeightDType(problem().dtype, tensor->dtype)) {
      return InvalidField(Name(role, ".dtype"),
                          absl::StrCat(DTypeName(tensor->dtype), " must be f32 or the dtype ",
                                       DTypeName(problem().dtype), " of x"));
    }
    if (role == TensorRole::kBias && Has(TensorRole::kWeight)) {
      absl::Status status = CheckDType(role, tensor->dtype, problem().weight_dtype, "of weight");
      if (!status.ok()) return status;
    }
    problem().weight_dtype = tensor->dtype;
    const bool batch_norm = problem().op == Op::kBatchNorm;
    return CheckVector(role, *tensor, batch_norm ? "channels" : "hidden_size",
                       problem().hidden_size, batch_norm ? Dims{} : NormalizedDims());
  }

  /// Statistics: one value per channel, or per row for row ops; when present.
  absl::Status TakeStatistics(TensorRole role) {
    if (!Has(role)) return absl::OkStatus();
    auto tensor = Take(role);
    if (!tensor.ok()) return tensor.status();
    absl::Status status =
        CheckDType(role, tensor->dtype, StatisticsDType(problem().dtype), "of statistics");
    if (!status.ok()) return status;
    if (problem().op == Op::kBatchNorm) {
      return CheckVector(role, *tensor, "channels", problem().hidden_size, {});
    }
    return CheckVector(role, *tensor, "rows", problem().rows, LeadingDims());
  }

  /// Refuses a tensor that the op does not take.
  absl::Status Refuse(TensorRole role, absl::string_view why) {
    if (!Has(role)) return absl::OkStatus();
    return InvalidField(TensorRoleName(role), absl::StrCat("is not allowed: ", why));
  }

  absl::Status Require(TensorRole role, absl::string_view why) {
    if (Has(role)) return absl::OkStatus();
    return InvalidField(TensorRoleName(role), absl::StrCat("is missing: ", why));
  }

  /// Both or none.
  absl::Status RequirePair(TensorRole a, TensorRole b) {
    if (Has(a) == Has(b)) return absl::OkStatus();
    const TensorRole missing = Has(a) ? b : a;
    const TensorRole given = Has(a) ? a : b;
    return InvalidField(TensorRoleName(missing), absl::StrCat("is missing: ", TensorRoleName(given),
                                                              " is given, and they come together"));
  }

  absl::Status CheckOutputs(const DecodeLimits& limits) {
    int64_t total = 0;
    for (int i = 0; i < kTensorRoleCount; ++i) {
      const auto role = static_cast<TensorRole>(i);
      if (!problem().outputs.Has(role)) continue;
      const int64_t elements = TensorElements(problem(), role);
      const auto size = static_cast<int64_t>(DTypeSize(TensorDType(problem(), role)));
      // Divides, since the dimensions of an empty tensor are claims without bytes behind them.
      if (elements > (limits.max_output_bytes - total) / size) {
        return absl::ResourceExhaustedError(
            absl::StrCat("output tensors with ", TensorRoleName(role), " of ", elements,
                         " elements exceed max_message_bytes ", limits.max_output_bytes));
      }
      total += elements * size;
    }
    return absl::OkStatus();
  }

 private:
  using Dims = absl::Span<const int64_t>;

  static std::string Name(TensorRole role, absl::string_view suffix) {
    return absl::StrCat(TensorRoleName(role), suffix);
  }

  Dims NormalizedDims() const {
    return absl::MakeConstSpan(x_shape_).last(static_cast<size_t>(normalized_dims_));
  }
  Dims LeadingDims() const {
    return absl::MakeConstSpan(x_shape_).first(x_shape_.size() -
                                               static_cast<size_t>(normalized_dims_));
  }

  absl::StatusOr<CheckedTensor> Take(TensorRole role) {
    if (!Has(role)) return InvalidField(TensorRoleName(role), "is missing");
    auto checked = CheckTensor(TensorRoleName(role), *tensors_[Index(role)], message_);
    if (!checked.ok()) return checked;
    InputTensor& input = job_->inputs[Index(role)];
    input.runs = checked->payload->runs;
    input.size_bytes = checked->payload->size_bytes;
    problem().inputs.Add(role);
    return checked;
  }

  static absl::Status CheckDType(TensorRole role, DType given, DType wanted,
                                 absl::string_view whose) {
    if (given == wanted) return absl::OkStatus();
    return InvalidField(Name(role, ".dtype"), absl::StrCat(DTypeName(given), " != dtype ",
                                                           DTypeName(wanted), " ", whose));
  }

  /// `tensor` must be [length], or have exactly the dimensions `also` where some are given.
  static absl::Status CheckVector(TensorRole role, const CheckedTensor& tensor,
                                  absl::string_view what, int64_t length, Dims also) {
    if (tensor.elements != length) {
      return InvalidField(TensorRoleName(role),
                          absl::StrCat("length ", tensor.elements, " != ", what, " ", length));
    }
    const bool flat = tensor.shape.size() == 1 && tensor.shape[0] == length;
    if (flat || (!also.empty() && absl::MakeConstSpan(tensor.shape) == also)) {
      return absl::OkStatus();
    }
    return InvalidField(
        Name(role, ".shape"),
        absl::StrCat(ShapeText(tensor.shape), " must be [", length, "]",
                     also.size() > 1 ? absl::StrCat(" or ", ShapeText(also)) : std::string()));
  }

  absl::Status ReadRowShape() {
    const auto rank = static_cast<int>(x_shape_.size());
    if (normalized_dims_ > rank) {
      return InvalidField(absl::StrCat(OpName(problem().op), ".normalized_dims"),
                          absl::StrCat(normalized_dims_, " > rank ", rank, " of x"));
    }
    problem().rows = Product(LeadingDims());
    problem().hidden_size = Product(NormalizedDims());
    if (problem().hidden_size < 1) {
      return InvalidField(
          "x.shape", absl::StrCat(ShapeText(x_shape_), " has hidden_size 0 (product of the last ",
                                  normalized_dims_, " dimensions), must be >= 1"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadBatchNormShape() {
    if (x_shape_.size() < 2) {
      return InvalidField("x.shape", absl::StrCat(ShapeText(x_shape_), " has rank ",
                                                  x_shape_.size(), ", batch_norm needs >= 2"));
    }
    BatchNormShape& shape = problem().batch_norm_shape;
    const Dims dims = x_shape_;
    const bool nchw = shape.layout == BatchNormLayout::kNchw;
    shape.batch = dims.front();
    shape.channels = nchw ? dims[1] : dims.back();
    shape.spatial = Product(nchw ? dims.subspan(2) : dims.subspan(1, dims.size() - 2));
    if (shape.channels < 1) {
      return InvalidField("x.shape",
                          absl::StrCat(ShapeText(x_shape_), " has 0 channels, must be >= 1"));
    }
    problem().rows = shape.batch * shape.spatial;
    problem().hidden_size = shape.channels;
    if (problem().batch_norm_mode == BatchNormMode::kTraining && problem().rows == 1) {
      return InvalidField("x.shape", absl::StrCat(ShapeText(x_shape_),
                                                  " has 1 value per channel, training needs >= 2"));
    }
    return absl::OkStatus();
  }

  const Tensors& tensors_;
  const wire::ReceivedMessage& message_;
  std::unique_ptr<Job> job_;
  std::vector<int64_t> x_shape_;
  int normalized_dims_ = 1;
};

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
std::optional<RequestKind> KindOfAny(const Request& request) {
  const std::optional<DType> dtype = FromProto(request.x().dtype());
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
                                                   const DecodeLimits& limits) {
  const Tensors tensors = TensorsOf(request);
  JobBuilder builder(tensors, message);
  NormProblem& problem = builder.problem();
  problem.direction = Direction::kForward;
  absl::Status status = ReadOpOptions(request, &problem, builder.normalized_dims());
  if (!status.ok()) return status;
  status = problem.op == Op::kBatchNorm ? BuildBatchNormForward(request, builder)
                                        : BuildRowForward(request, builder);
  if (!status.ok()) return status;
  status = builder.CheckOutputs(limits);
  if (!status.ok()) return status;
  return builder.Take();
}

absl::StatusOr<std::unique_ptr<Job>> DecodeRequest(
    const norm::v1::NormalizeBackwardRequest& request, const wire::ReceivedMessage& message,
    const DecodeLimits& limits) {
  const Tensors tensors = TensorsOf(request);
  JobBuilder builder(tensors, message);
  NormProblem& problem = builder.problem();
  problem.direction = Direction::kBackward;
  absl::Status status = ReadOpOptions(request, &problem, builder.normalized_dims());
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
  status = builder.CheckOutputs(limits);
  if (!status.ok()) return status;
  return builder.Take();
}

std::optional<RequestKind> KindOf(const norm::v1::NormalizeRequest& request) {
  return KindOfAny(request);
}

std::optional<RequestKind> KindOf(const norm::v1::NormalizeBackwardRequest& request) {
  return KindOfAny(request);
}

}  // namespace norm::server
