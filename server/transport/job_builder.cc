#include "server/transport/job_builder.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/scheduler/row_split.h"
#include "server/transport/field_error.h"
#include "server/transport/receive_memory.h"

namespace norm::server {
namespace {

/// Hidden size or channels of an x without elements: gradients and statistics have that length, and
/// no bytes of the request stand behind it.
constexpr int64_t kMaxHiddenOfEmpty = int64_t{1} << 20;

int64_t Product(absl::Span<const int64_t> dimensions) {
  int64_t product = 1;
  for (const int64_t dimension : dimensions) product *= dimension;
  return product;
}

std::string Name(TensorRole role, absl::string_view suffix) {
  return absl::StrCat(TensorRoleName(role), suffix);
}

absl::Status CheckDType(TensorRole role, DType given, DType wanted, absl::string_view whose) {
  if (given == wanted) return absl::OkStatus();
  return InvalidField(Name(role, ".dtype"),
                      absl::StrCat(DTypeName(given), " != dtype ", DTypeName(wanted), " ", whose));
}

/// `tensor` must be [length], or have exactly the dimensions `also` where some are given.
absl::Status CheckVector(TensorRole role, const CheckedTensor& tensor, absl::string_view what,
                         int64_t length, absl::Span<const int64_t> also) {
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

}  // namespace

absl::Status JobBuilder::TakeX() {
  auto x = Take(TensorRole::kX);
  if (!x.ok()) return x.status();
  x_shape_ = x->shape;
  problem().dtype = x->dtype;
  problem().weight_dtype = StatisticsDType(x->dtype);
  absl::Status status = problem().op == Op::kBatchNorm ? ReadBatchNormShape() : ReadRowShape();
  if (!status.ok()) return status;
  if (x->elements == 0 && problem().hidden_size > kMaxHiddenOfEmpty) {
    return absl::ResourceExhaustedError(
        absl::StrCat("x.shape ", ShapeText(x_shape_), " is empty and has ", problem().hidden_size,
                     problem().op == Op::kBatchNorm ? " channels" : " for hidden_size",
                     ", the limit is ", kMaxHiddenOfEmpty));
  }
  return absl::OkStatus();
}

absl::Status JobBuilder::TakeLikeX(TensorRole role) {
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

absl::Status JobBuilder::TakeParameter(TensorRole role) {
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
  return CheckVector(role, *tensor, batch_norm ? "channels" : "hidden_size", problem().hidden_size,
                     batch_norm ? Dims{} : NormalizedDims());
}

absl::Status JobBuilder::TakeStatistics(TensorRole role) {
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

absl::Status JobBuilder::Refuse(TensorRole role, absl::string_view why) const {
  if (!Has(role)) return absl::OkStatus();
  return InvalidField(TensorRoleName(role), absl::StrCat("is not allowed: ", why));
}

absl::Status JobBuilder::Require(TensorRole role, absl::string_view why) const {
  if (Has(role)) return absl::OkStatus();
  return InvalidField(TensorRoleName(role), absl::StrCat("is missing: ", why));
}

absl::Status JobBuilder::RequirePair(TensorRole a, TensorRole b) const {
  if (Has(a) == Has(b)) return absl::OkStatus();
  const TensorRole missing = Has(a) ? b : a;
  const TensorRole given = Has(a) ? a : b;
  return InvalidField(TensorRoleName(missing), absl::StrCat("is missing: ", TensorRoleName(given),
                                                            " is given, and they come together"));
}

absl::Status JobBuilder::CheckOutputs(int64_t max_output_bytes) const {
  const NormProblem& problem = job_->problem;
  int64_t total = 0;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (!problem.outputs.Has(role) || TransferOf(role) == Transfer::kInRows) continue;
    const int64_t elements = TensorElements(problem, role);
    const auto size = static_cast<int64_t>(DTypeSize(TensorDType(problem, role)));
    // Divides, since the dimensions of an empty tensor are claims without bytes behind them.
    if (elements > (max_output_bytes - total) / size) {
      return absl::ResourceExhaustedError(
          absl::StrCat("output tensors with ", TensorRoleName(role), " of ", elements,
                       " elements exceed max_message_bytes ", max_output_bytes));
    }
    total += elements * size;
  }
  return absl::OkStatus();
}

JobBuilder::Dims JobBuilder::NormalizedDims() const {
  return absl::MakeConstSpan(x_shape_).last(static_cast<size_t>(normalized_dims_));
}
JobBuilder::Dims JobBuilder::LeadingDims() const {
  return absl::MakeConstSpan(x_shape_).first(x_shape_.size() -
                                             static_cast<size_t>(normalized_dims_));
}

Transfer JobBuilder::TransferOf(TensorRole role) const {
  return TravelsInRows(job_->problem.op, role) ? transfer_ : Transfer::kWhole;
}

absl::StatusOr<CheckedTensor> JobBuilder::Take(TensorRole role) {
  if (!Has(role)) return InvalidField(TensorRoleName(role), "is missing");
  auto checked = CheckTensor(TensorRoleName(role), *tensors_[static_cast<size_t>(role)], message_,
                             TransferOf(role));
  if (!checked.ok()) return checked;
  InputTensor& input = job_->inputs[static_cast<size_t>(role)];
  input.runs = checked->payload->runs;
  input.size_bytes = checked->payload->size_bytes;
  input.page_locked = LiesInReceiveMemory(input.runs);
  problem().inputs.Add(role);
  return checked;
}

absl::Status JobBuilder::ReadRowShape() {
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

absl::Status JobBuilder::ReadBatchNormShape() {
  if (x_shape_.size() < 2) {
    return InvalidField("x.shape", absl::StrCat(ShapeText(x_shape_), " has rank ", x_shape_.size(),
                                                ", batch_norm needs >= 2"));
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

}  // namespace norm::server
