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

}  // namespace

Status CheckSegment(const RowNormForwardArgs& first, const RowNormForwardArgs& other,
                    size_t index) {
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

RowNormForwardArgs ToRowNorm(const RmsNormForwardArgs& args) {
  RowNormForwardArgs row;
  row.kind = RowNormKind::kRms;
  row.x = args.x;
  row.residual = args.residual;
  row.weight = args.weight;
  row.y = args.y;
  row.residual_sum = args.residual_sum;
  row.rstd = args.rstd;
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  row.weight_offset = args.weight_offset;
  row.rounding = args.rounding;
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
  row.rows = args.rows;
  row.hidden_size = args.hidden_size;
  row.dtype = args.dtype;
  row.weight_dtype = args.weight_dtype;
  row.eps = args.eps;
  row.rounding = args.rounding;
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

  const int64_t elements = args.rows * args.hidden_size;
  const DType statistics = StatisticsDType(args.dtype);
  const TensorArgument x = {"x", args.x, elements, args.dtype};
  const TensorArgument residual = {"residual", args.residual, elements, args.dtype};
  const TensorArgument weight = {"weight", args.weight, args.hidden_size, args.weight_dtype};
  const TensorArgument bias = {"bias", args.bias, args.hidden_size, args.weight_dtype};
  const TensorArgument y = {"y", args.y, elements, args.dtype};
  const TensorArgument residual_sum = {"residual_sum", args.residual_sum, elements, args.dtype};
  const TensorArgument mean = {"mean", args.mean, args.rows, statistics};
  const TensorArgument rstd = {"rstd", args.rstd, args.rows, statistics};
  NORM_RETURN_IF_ERROR(CheckRequired(x));
  NORM_RETURN_IF_ERROR(CheckRequired(y));
  NORM_RETURN_IF_ERROR(CheckTogether(residual, residual_sum));
  for (const TensorArgument& optional : {weight, bias, mean, rstd}) {
    NORM_RETURN_IF_ERROR(CheckOptional(optional));
  }
  return CheckAliasing({x, residual, weight, bias}, {{y, {args.x, args.residual}},
                                                     {residual_sum, {args.x, args.residual}},
                                                     {mean, {}},
                                                     {rstd, {}}});
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
