#include "row_norm/row_norm.h"

#include <cmath>

#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

Status CheckSizes(int64_t rows, int64_t hidden_size, DType dtype) {
  NORM_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 0));
  NORM_RETURN_IF_ERROR(CheckAtLeast("hidden_size", hidden_size, 1));
  NORM_RETURN_IF_ERROR(CheckTensorBytes({rows, hidden_size}, dtype));
  // Parameters may be wider than x.
  return CheckTensorBytes({hidden_size}, DType::kF64);
}

Status CheckWeightOffset(double weight_offset, const void* weight) {
  if (!std::isfinite(weight_offset)) {
    return InvalidArgument("weight_offset %g must be finite", weight_offset);
  }
  if (weight_offset != 0.0 && weight == nullptr) {
    return InvalidArgument("weight_offset %g needs a weight, but weight is null", weight_offset);
  }
  return Status();
}

/// That the output format is known and goes with the dtype of x, and that the static scale is there
/// for the format that takes one.
Status CheckOutputFormat(const RowNormForwardArgs& args) {
  // Both the scale and its reciprocal are then normal f32 numbers.
  constexpr float kSmallestScale = 0x1p-126f;
  constexpr float kLargestScale = 0x1p126f;
  if (static_cast<int>(args.output_format) >= kOutputFormatCount) {
    return InvalidArgument(
        "output_format %d is not one of same_as_input, f8e4m3, f8e4m3_per_row, "
        "int8_per_row",
        static_cast<int>(args.output_format));
  }
  const char* name = OutputFormatName(args.output_format);
  if (args.output_format != OutputFormat::kSameAsInput && args.dtype == DType::kF64) {
    return InvalidArgument("output_format %s needs x of f32, f16 or bf16, but dtype is f64", name);
  }
  // Written so that a NaN is refused.
  const bool in_range = args.y_scale >= kSmallestScale && args.y_scale <= kLargestScale;
  if (args.output_format == OutputFormat::kF8E4M3) {
    return in_range ? Status()
                    : InvalidArgument("y_scale %g must be in [2^-126, 2^126]",
                                      static_cast<double>(args.y_scale));
  }
  return args.y_scale == 1.0f
             ? Status()
             : InvalidArgument("y_scale %g is given, but output_format is %s, not f8e4m3",
                               static_cast<double>(args.y_scale), name);
}

}  // namespace

namespace {

template <typename Args>
Status CheckRowSegment(const Args& first, const Args& other, size_t index) {
  const Status status = Validate(other);
  if (!status.ok()) return InvalidArgument("segment %zu: %s", index, status.message().c_str());
  if (other.hidden_size != first.hidden_size) {
    return InvalidArgument("segment %zu: hidden_size %lld differs from %lld of segment 0", index,
                           static_cast<long long>(other.hidden_size),
                           static_cast<long long>(first.hidden_size));
  }
  if (other.dtype != first.dtype) {
    return InvalidArgument("segment %zu: dtype %s differs from %s of segment 0", index,
                           DTypeName(other.dtype), DTypeName(first.dtype));
  }
  if (other.weight_dtype != first.weight_dtype) {
    return InvalidArgument("segment %zu: weight_dtype %s differs from %s of segment 0", index,
                           DTypeName(other.weight_dtype), DTypeName(first.weight_dtype));
  }
  return Status();
}

}  // namespace

Status CheckSegment(const RowNormForwardArgs& first, const RowNormForwardArgs& other,
                    size_t index) {
  return CheckRowSegment(first, other, index);
}

Status CheckSegment(const RowNormBackwardArgs& first, const RowNormBackwardArgs& other,
                    size_t index) {
  return CheckRowSegment(first, other, index);
}

RowNormForwardArgs ToRowNorm(const RmsNormForwardArgs& args) {
  RowNormForwardArgs row;
  row.kind = RowNormKind::kRms;
  row.x = args.x;
  row.residual = args.residual;
  row.weight = args.weight;
  row.y = args.y;
  row.residual_sum = args.residual_sum;
  row.rstd = args.rstd;
  row.row_scale = args.row_scale;
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  row.weight_offset = args.weight_offset;
  row.rounding = args.rounding;
  row.output_format = args.output_format;
  row.y_scale = args.y_scale;
  return row;
}

RowNormForwardArgs ToRowNorm(const LayerNormForwardArgs& args) {
  RowNormForwardArgs row;
  row.kind = RowNormKind::kLayer;
  row.x = args.x;
  row.residual = args.residual;
  row.weight = args.weight;
  row.bias = args.bias;
  row.y = args.y;
  row.residual_sum = args.residual_sum;
  row.mean = args.mean;
  row.rstd = args.rstd;
  row.row_scale = args.row_scale;
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  row.rounding = args.rounding;
  row.output_format = args.output_format;
  row.y_scale = args.y_scale;
  return row;
}

RowNormBackwardArgs ToRowNorm(const RmsNormBackwardArgs& args) {
  RowNormBackwardArgs row;
  row.kind = RowNormKind::kRms;
  row.dy = args.dy;
  row.x = args.x;
  row.weight = args.weight;
  row.rstd = args.rstd;
  row.dresidual_sum = args.dresidual_sum;
  row.dx = args.dx;
  row.dweight = args.dweight;
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  row.weight_offset = args.weight_offset;
  return row;
}

RowNormBackwardArgs ToRowNorm(const LayerNormBackwardArgs& args) {
  RowNormBackwardArgs row;
  row.kind = RowNormKind::kLayer;
  row.dy = args.dy;
  row.x = args.x;
  row.weight = args.weight;
  row.mean = args.mean;
  row.rstd = args.rstd;
  row.dresidual_sum = args.dresidual_sum;
  row.dx = args.dx;
  row.dweight = args.dweight;
  row.dbias = args.dbias;
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  return row;
}

Status Validate(const RowNormForwardArgs& args) {
  NORM_RETURN_IF_ERROR(CheckDTypes(args.dtype, args.weight_dtype));
  NORM_RETURN_IF_ERROR(CheckSizes(args.rows, args.hidden_size, args.dtype));
  NORM_RETURN_IF_ERROR(CheckEps(args.eps));
  NORM_RETURN_IF_ERROR(CheckWeightOffset(args.weight_offset, args.weight));
  NORM_RETURN_IF_ERROR(CheckOutputFormat(args));

  const int64_t elements = args.rows * args.hidden_size;
  const DType statistics = StatisticsDType(args.dtype);
  const TensorArgument x = {"x", args.x, elements, args.dtype};
  const TensorArgument residual = {"residual", args.residual, elements, args.dtype};
  const TensorArgument weight = {"weight", args.weight, args.hidden_size, args.weight_dtype};
  const TensorArgument bias = {"bias", args.bias, args.hidden_size, args.weight_dtype};
  const bool quantizes = args.output_format != OutputFormat::kSameAsInput;
  const TensorArgument y = {"y", args.y, elements, quantizes ? 1 : DTypeSize(args.dtype)};
  const TensorArgument residual_sum = {"residual_sum", args.residual_sum, elements, args.dtype};
  const TensorArgument mean = {"mean", args.mean, args.rows, statistics};
  const TensorArgument rstd = {"rstd", args.rstd, args.rows, statistics};
  const TensorArgument row_scale = {"row_scale", args.row_scale, args.rows, DType::kF32};
  NORM_RETURN_IF_ERROR(CheckRequired(x));
  NORM_RETURN_IF_ERROR(CheckRequired(y));
  NORM_RETURN_IF_ERROR(CheckTogether(residual, residual_sum));
  for (const TensorArgument& optional : {weight, bias, mean, rstd}) {
    NORM_RETURN_IF_ERROR(CheckOptional(optional));
  }
  if (HasRowScale(args.output_format)) {
    NORM_RETURN_IF_ERROR(CheckRequired(row_scale));
  } else {
    NORM_RETURN_IF_ERROR(
        CheckAbsent("row_scale", args.row_scale, "output_format has no scale per row"));
  }
  // A quantized y is narrower than x: written in place, it would overtake rows yet to be read.
  const void* y_may_equal_x = quantizes ? nullptr : args.x;
  const void* y_may_equal_residual = quantizes ? nullptr : args.residual;
  return CheckAliasing({x, residual, weight, bias}, {{y, {y_may_equal_x, y_may_equal_residual}},
                                                     {residual_sum, {args.x, args.residual}},
                                                     {mean, {}},
                                                     {rstd, {}},
                                                     {row_scale, {}}});
}

Status Validate(const RowNormBackwardArgs& args) {
  NORM_RETURN_IF_ERROR(CheckDTypes(args.dtype, args.weight_dtype));
  NORM_RETURN_IF_ERROR(CheckSizes(args.rows, args.hidden_size, args.dtype));
  NORM_RETURN_IF_ERROR(CheckEps(args.eps));
  NORM_RETURN_IF_ERROR(CheckWeightOffset(args.weight_offset, args.weight));

  const int64_t elements = args.rows * args.hidden_size;
  const DType statistics = StatisticsDType(args.dtype);
  const TensorArgument dy = {"dy", args.dy, elements, args.dtype};
  const TensorArgument x = {"x", args.x, elements, args.dtype};
  const TensorArgument weight = {"weight", args.weight, args.hidden_size, args.weight_dtype};
  const TensorArgument mean = {"mean", args.mean, args.rows, statistics};
  const TensorArgument rstd = {"rstd", args.rstd, args.rows, statistics};
  const TensorArgument dresidual_sum = {"dresidual_sum", args.dresidual_sum, elements, args.dtype};
  const TensorArgument dx = {"dx", args.dx, elements, args.dtype};
  const TensorArgument dweight = {"dweight", args.dweight, args.hidden_size, args.weight_dtype};
  const TensorArgument dbias = {"dbias", args.dbias, args.hidden_size, args.weight_dtype};
  NORM_RETURN_IF_ERROR(CheckRequired(dy));
  NORM_RETURN_IF_ERROR(CheckRequired(x));
  NORM_RETURN_IF_ERROR(CheckRequired(dx));
  if (args.kind == RowNormKind::kLayer) {
    NORM_RETURN_IF_ERROR(CheckTogether(mean, rstd));
  }
  for (const TensorArgument& optional : {weight, rstd, dresidual_sum, dweight, dbias}) {
    NORM_RETURN_IF_ERROR(CheckOptional(optional));
  }
  return CheckAliasing({dy, x, weight, mean, rstd, dresidual_sum},
                       {{dx, {args.dy, args.x, args.dresidual_sum}}, {dweight, {}}, {dbias, {}}});
}

}  // namespace norm::internal
