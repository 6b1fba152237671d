#include "norm/kernels/batch_norm.h"

#include <cmath>

#include "validation/argument_checks.h"

namespace norm {
namespace {

using internal::CheckAbsent;
using internal::CheckAliasing;
using internal::CheckAtLeast;
using internal::CheckDTypes;
using internal::CheckEps;
using internal::CheckOptional;
using internal::CheckRequired;
using internal::CheckTensorBytes;
using internal::CheckTogether;
using internal::InvalidArgument;
using internal::TensorArgument;

Status CheckShape(const BatchNormShape& shape, DType dtype, BatchNormMode mode) {
  NORM_RETURN_IF_ERROR(CheckAtLeast("batch", shape.batch, 0));
  NORM_RETURN_IF_ERROR(CheckAtLeast("channels", shape.channels, 1));
  NORM_RETURN_IF_ERROR(CheckAtLeast("spatial", shape.spatial, 0));
  NORM_RETURN_IF_ERROR(CheckTensorBytes({shape.batch, shape.channels, shape.spatial}, dtype));
  NORM_RETURN_IF_ERROR(CheckTensorBytes({shape.channels}, DType::kF64));
  if (mode == BatchNormMode::kTraining && shape.batch == 1 && shape.spatial == 1) {
    return InvalidArgument(
        "training needs at least 2 values per channel, but batch * spatial is 1 * 1");
  }
  return Status();
}

/// Whether `other` can go with `first`: named by `index`, its place among the segments.
template <typename Args>
Status CheckSegment(const Args& first, const Args& other, size_t index) {
  const Status status = Validate(other);
  if (!status.ok()) return InvalidArgument("segment %zu: %s", index, status.message().c_str());
  const auto differs = [&](const char* name, int64_t value, int64_t wanted) {
    return InvalidArgument("segment %zu: %s %lld differs from %lld of segment 0", index, name,
                           static_cast<long long>(value), static_cast<long long>(wanted));
  };
  if (other.shape.channels != first.shape.channels) {
    return differs("channels", other.shape.channels, first.shape.channels);
  }
  if (other.shape.spatial != first.shape.spatial) {
    return differs("spatial", other.shape.spatial, first.shape.spatial);
  }
  const auto differs_by_name = [&](const char* name, const char* value, const char* wanted) {
    return InvalidArgument("segment %zu: %s %s differs from %s of segment 0", index, name, value,
                           wanted);
  };
  const auto layout = [](BatchNormLayout value) {
    return value == BatchNormLayout::kNchw ? "NCHW" : "NHWC";
  };
  const auto mode = [](BatchNormMode value) {
    return value == BatchNormMode::kTraining ? "training" : "inference";
  };
  if (other.shape.layout != first.shape.layout) {
    return differs_by_name("layout", layout(other.shape.layout), layout(first.shape.layout));
  }
  if (other.mode != first.mode) return differs_by_name("mode", mode(other.mode), mode(first.mode));
  if (other.dtype != first.dtype) {
    return differs_by_name("dtype", DTypeName(other.dtype), DTypeName(first.dtype));
  }
  if (other.weight_dtype != first.weight_dtype) {
    return differs_by_name("weight_dtype", DTypeName(other.weight_dtype),
                           DTypeName(first.weight_dtype));
  }
  return Status();
}

template <typename Args>
Status CheckSegments(std::span<const Args> segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    NORM_RETURN_IF_ERROR(CheckSegment(segments[0], segments[i], i));
  }
  return Status();
}

int64_t Elements(const BatchNormShape& shape) {
  return shape.batch == 0 || shape.spatial == 0 ? 0 : shape.batch * shape.channels * shape.spatial;
}

}  // namespace

Status Validate(const BatchNormForwardArgs& args) {
  NORM_RETURN_IF_ERROR(CheckDTypes(args.dtype, args.weight_dtype));
  NORM_RETURN_IF_ERROR(CheckShape(args.shape, args.dtype, args.mode));
  NORM_RETURN_IF_ERROR(CheckEps(args.eps));
  if (!(args.momentum >= 0.0 && args.momentum <= 1.0)) {
    return InvalidArgument("momentum %g must be in [0, 1]", args.momentum);
  }

  const int64_t elements = Elements(args.shape);
  const int64_t channels = args.shape.channels;
  const DType statistics = StatisticsDType(args.dtype);
  const TensorArgument x = {"x", args.x, elements, args.dtype};
  const TensorArgument weight = {"weight", args.weight, channels, args.weight_dtype};
  const TensorArgument bias = {"bias", args.bias, channels, args.weight_dtype};
  const TensorArgument running_mean = {"running_mean", args.running_mean, channels, statistics};
  const TensorArgument running_var = {"running_var", args.running_var, channels, statistics};
  const TensorArgument y = {"y", args.y, elements, args.dtype};
  const TensorArgument mean = {"mean", args.mean, channels, statistics};
  const TensorArgument rstd = {"rstd", args.rstd, channels, statistics};
  const TensorArgument new_running_mean = {"new_running_mean", args.new_running_mean, channels,
                                           statistics};
  const TensorArgument new_running_var = {"new_running_var", args.new_running_var, channels,
                                          statistics};
  NORM_RETURN_IF_ERROR(CheckRequired(x));
  NORM_RETURN_IF_ERROR(CheckRequired(y));
  for (const TensorArgument& optional : {weight, bias, mean, rstd}) {
    NORM_RETURN_IF_ERROR(CheckOptional(optional));
  }
  if (args.mode == BatchNormMode::kTraining) {
    NORM_RETURN_IF_ERROR(CheckTogether(running_mean, running_var));
    NORM_RETURN_IF_ERROR(CheckTogether(running_mean, new_running_mean));
    NORM_RETURN_IF_ERROR(CheckTogether(running_var, new_running_var));
  } else {
    NORM_RETURN_IF_ERROR(CheckRequired(running_mean));
    NORM_RETURN_IF_ERROR(CheckRequired(running_var));
    constexpr const char* kRule = "inference computes no batch statistics";
    NORM_RETURN_IF_ERROR(CheckAbsent("mean", args.mean, kRule));
    NORM_RETURN_IF_ERROR(CheckAbsent("new_running_mean", args.new_running_mean, kRule));
    NORM_RETURN_IF_ERROR(CheckAbsent("new_running_var", args.new_running_var, kRule));
  }
  return CheckAliasing({x, weight, bias, running_mean, running_var},
                       {{y, {args.x}},
                        {mean, {}},
                        {rstd, {}},
                        {new_running_mean, {args.running_mean}},
                        {new_running_var, {args.running_var}}});
}

Status Validate(const BatchNormBackwardArgs& args) {
  NORM_RETURN_IF_ERROR(CheckDTypes(args.dtype, args.weight_dtype));
  NORM_RETURN_IF_ERROR(CheckShape(args.shape, args.dtype, args.mode));
  NORM_RETURN_IF_ERROR(CheckEps(args.eps));

  const int64_t elements = Elements(args.shape);
  const int64_t channels = args.shape.channels;
  const DType statistics = StatisticsDType(args.dtype);
  const TensorArgument dy = {"dy", args.dy, elements, args.dtype};
  const TensorArgument x = {"x", args.x, elements, args.dtype};
  const TensorArgument weight = {"weight", args.weight, channels, args.weight_dtype};
  const TensorArgument mean = {"mean", args.mean, channels, statistics};
  const TensorArgument rstd = {"rstd", args.rstd, channels, statistics};
  const TensorArgument running_var = {"running_var", args.running_var, channels, statistics};
  const TensorArgument dx = {"dx", args.dx, elements, args.dtype};
  const TensorArgument dweight = {"dweight", args.dweight, channels, args.weight_dtype};
  const TensorArgument dbias = {"dbias", args.dbias, channels, args.weight_dtype};
  NORM_RETURN_IF_ERROR(CheckRequired(dy));
  NORM_RETURN_IF_ERROR(CheckRequired(x));
  NORM_RETURN_IF_ERROR(CheckRequired(dx));
  for (const TensorArgument& optional : {weight, dweight, dbias}) {
    NORM_RETURN_IF_ERROR(CheckOptional(optional));
  }
  if (args.mode == BatchNormMode::kTraining) {
    NORM_RETURN_IF_ERROR(CheckTogether(mean, rstd));
    NORM_RETURN_IF_ERROR(
        CheckAbsent("running_var", args.running_var, "training uses the statistics of the batch"));
  } else {
    NORM_RETURN_IF_ERROR(CheckRequired(mean));
    NORM_RETURN_IF_ERROR(CheckRequired(running_var));
    NORM_RETURN_IF_ERROR(
        CheckAbsent("rstd", args.rstd, "inference computes it from running_var and eps"));
  }
  return CheckAliasing({dy, x, weight, mean, rstd, running_var},
                       {{dx, {args.dy, args.x}}, {dweight, {}}, {dbias, {}}});
}

Status ValidateSegments(std::span<const BatchNormForwardArgs> segments) {
  return CheckSegments(segments);
}

Status ValidateSegments(std::span<const BatchNormBackwardArgs> segments) {
  return CheckSegments(segments);
}

}  // namespace norm
