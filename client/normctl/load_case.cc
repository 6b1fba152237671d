#include "client/normctl/load_case.h"

#include <cstddef>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace norm::normctl {
namespace {

constexpr size_t kMaxRank = 64;                  // the server's
constexpr int64_t kMaxMessageBytes = INT32_MAX;  // the protocol's
constexpr int64_t kMaxShare = 1000;
constexpr int64_t kMaxSets = 4096;
constexpr int64_t kMaxParameterBytes = int64_t{1} << 30;

int64_t SizeOf(DType dtype) { return static_cast<int64_t>(DTypeSize(dtype)); }

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

absl::Status CheckShape(const LoadCase& load_case) {
  const std::string text = ShapeText(load_case.shape);
  const int64_t element_bytes = SizeOf(load_case.dtype);
  int64_t elements = 1;
  for (const int64_t size : load_case.shape) {
    if (size < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("shape: ", text, " has the size ", size, " < 1"));
    if (size > kMaxMessageBytes / element_bytes / elements) {
      return absl::InvalidArgumentError(absl::StrCat("shape: ", text, " of ", element_bytes,
                                                     " bytes each is over the limit of ",
                                                     kMaxMessageBytes, " bytes"));
    }
    elements *= size;
  }
  // dy beside x, or residual beside x.
  const bool two = load_case.direction == Direction::kBackward || load_case.residual;
  if (two && elements > kMaxMessageBytes / element_bytes / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: two tensors of ", text, " of ", element_bytes,
                     " bytes each are over the limit of ", kMaxMessageBytes, " bytes"));
  }
  return absl::OkStatus();
}

/// A field that another field's value rules out.
absl::Status Excluded(const char* field, const LoadCase& load_case, const char* rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": is for ", rule, ", not for ",
                                                 OpName(load_case.op), " ",
                                                 DirectionName(load_case.direction)));
}

absl::Status CheckTensors(const LoadCase& load_case) {
  const bool forward = load_case.direction == Direction::kForward;
  if (load_case.bias && load_case.op == Op::kRmsNorm)
    return Excluded("bias", load_case, "layer_norm and batch_norm");
  if (load_case.residual && (load_case.op == Op::kBatchNorm || !forward))
    return Excluded("residual", load_case, "rms_norm and layer_norm forward");
  if (load_case.running && (load_case.op != Op::kBatchNorm || !forward))
    return Excluded("running", load_case, "batch_norm forward");
  if (load_case.weight_dtype.has_value()) {
    if (!load_case.weight) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight_dtype: ", DTypeName(*load_case.weight_dtype), " needs weight=inline"));
    }
    if (*load_case.weight_dtype != load_case.dtype &&
        (*load_case.weight_dtype != DType::kF32 || load_case.dtype == DType::kF64)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight_dtype: ", DTypeName(*load_case.weight_dtype), " is neither the dtype ",
          DTypeName(load_case.dtype), " nor f32 beside f16 or bf16"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBatchNorm(const LoadCase& load_case) {
  if (load_case.op != Op::kBatchNorm) return absl::OkStatus();
  if (load_case.shape.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", ShapeText(load_case.shape),
                                                   " has rank 1, batch_norm needs rank 2"));
  }
  const int64_t values = Product(load_case.shape) / load_case.parameter_size();
  if (load_case.mode == BatchNormMode::kTraining && values < 2) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", ShapeText(load_case.shape), " has ",
                                                   values, " value per channel, training needs 2"));
  }
  return absl::OkStatus();
}

absl::Status CheckSets(const LoadCase& load_case) {
  if (load_case.share < 1 || load_case.share > kMaxShare) {
    return absl::InvalidArgumentError(
        absl::StrCat("share: ", load_case.share, " is outside [1, ", kMaxShare, "]"));
  }
  if (load_case.sets < 1 || load_case.sets > kMaxSets) {
    return absl::InvalidArgumentError(
        absl::StrCat("sets: ", load_case.sets, " is outside [1, ", kMaxSets, "]"));
  }
  if (load_case.sets == 1) return absl::OkStatus();
  const bool bias_sent = load_case.bias && load_case.direction == Direction::kForward;
  if (!load_case.weight && !bias_sent) {
    return absl::InvalidArgumentError(
        absl::StrCat("sets: ", load_case.sets,
                     " different parameters need weight=inline, or bias=inline forward"));
  }
  const int64_t set_bytes = load_case.parameter_size() * SizeOf(load_case.parameter_dtype()) *
                            (load_case.weight + bias_sent);
  if (set_bytes > kMaxParameterBytes / load_case.sets) {
    return absl::InvalidArgumentError(absl::StrCat("sets: ", load_case.sets, " of ", set_bytes,
                                                   " bytes are over the limit of ",
                                                   kMaxParameterBytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t LoadCase::parameter_size() const {
  const bool channels_second = op == Op::kBatchNorm && layout == BatchNormLayout::kNchw;
  return channels_second ? shape[1] : shape.back();
}

std::string LoadCase::Name() const {
  std::string name = absl::StrCat(OpName(op), " ", DirectionName(direction), " ", ShapeText(shape),
                                  " ", DTypeName(dtype));
  if (op == Op::kBatchNorm) {
    absl::StrAppend(&name, mode == BatchNormMode::kTraining ? " training" : " inference",
                    layout == BatchNormLayout::kNchw ? " nchw" : " nhwc");
  }
  if (weight) absl::StrAppend(&name, " weight");
  if (weight_dtype.has_value() && *weight_dtype != dtype)
    absl::StrAppend(&name, " ", DTypeName(*weight_dtype));
  if (bias) absl::StrAppend(&name, " bias");
  if (residual) absl::StrAppend(&name, " residual");
  if (running) absl::StrAppend(&name, " running");
  if (sets > 1) absl::StrAppend(&name, " ", sets, " sets");
  if (priority == client::Priority::kBulk)
    absl::StrAppend(&name, " ", client::PriorityName(priority));
  return name;
}

absl::StatusOr<std::vector<int64_t>> ParseShape(absl::string_view text) {
  std::vector<int64_t> shape;
  for (const absl::string_view part : absl::StrSplit(text, 'x')) {
    int64_t size = 0;
    if (shape.size() == kMaxRank || !absl::SimpleAtoi(part, &size)) {
      return absl::InvalidArgumentError(absl::StrCat("shape: '", text, "' is not 1 to ", kMaxRank,
                                                     " sizes joined by x, such as 4x4096"));
    }
    shape.push_back(size);
  }
  return shape;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrJoin(shape, "x"); }

absl::Status Validate(const LoadCase& load_case) {
  for (const auto& check : {CheckShape, CheckTensors, CheckBatchNorm, CheckSets}) {
    if (absl::Status status = check(load_case); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace norm::normctl
