#include "server/scheduler/norm_problem.h"

namespace norm::server {
namespace {

enum class Extent : uint8_t { kElement, kColumn, kStatistic };

Extent ExtentOf(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight:
    case TensorRole::kBias:
    case TensorRole::kDweight:
    case TensorRole::kDbias:
    case TensorRole::kRunningMean:
    case TensorRole::kRunningVar:
      return Extent::kColumn;
    case TensorRole::kMean:
    case TensorRole::kRstd:
      return Extent::kStatistic;
    case TensorRole::kX:
    case TensorRole::kResidual:
    case TensorRole::kDy:
    case TensorRole::kDresidualSum:
    case TensorRole::kY:
    case TensorRole::kResidualSum:
    case TensorRole::kDx:
      break;
  }
  return Extent::kElement;
}

template <typename Predicate>
int64_t SumBytes(const NormProblem& problem, TensorRoleSet roles, Predicate wanted) {
  int64_t bytes = 0;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (roles.Has(role) && wanted(role)) {
      bytes += TensorBytes(problem, role);
    }
  }
  return bytes;
}

}  // namespace

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kX:
      return "x";
    case TensorRole::kWeight:
      return "weight";
    case TensorRole::kBias:
      return "bias";
    case TensorRole::kResidual:
      return "residual";
    case TensorRole::kRunningMean:
      return "running_mean";
    case TensorRole::kRunningVar:
      return "running_var";
    case TensorRole::kDy:
      return "dy";
    case TensorRole::kMean:
      return "mean";
    case TensorRole::kRstd:
      return "rstd";
    case TensorRole::kDresidualSum:
      return "dresidual_sum";
    case TensorRole::kY:
      return "y";
    case TensorRole::kResidualSum:
      return "residual_sum";
    case TensorRole::kDx:
      return "dx";
    case TensorRole::kDweight:
      return "dweight";
    case TensorRole::kDbias:
      return "dbias";
  }
  return "unknown";
}

int64_t TensorElements(const NormProblem& problem, TensorRole role) {
  switch (ExtentOf(role)) {
    case Extent::kElement:
      return problem.rows * problem.hidden_size;
    case Extent::kColumn:
      return problem.hidden_size;
    case Extent::kStatistic:
      return problem.op == Op::kBatchNorm ? problem.hidden_size : problem.rows;
  }
  return 0;
}

DType TensorDType(const NormProblem& problem, TensorRole role) {
  switch (role) {
    case TensorRole::kWeight:
    case TensorRole::kBias:
    case TensorRole::kDweight:
    case TensorRole::kDbias:
      return problem.weight_dtype;
    case TensorRole::kRunningMean:
    case TensorRole::kRunningVar:
    case TensorRole::kMean:
    case TensorRole::kRstd:
      return StatisticsDType(problem.dtype);
    default:
      return problem.dtype;
  }
}

int64_t TensorBytes(const NormProblem& problem, TensorRole role) {
  return TensorElements(problem, role) *
         static_cast<int64_t>(DTypeSize(TensorDType(problem, role)));
}

int64_t ProblemBytes(const NormProblem& problem) {
  const auto all = [](TensorRole) { return true; };
  return SumBytes(problem, problem.inputs, all) + SumBytes(problem, problem.outputs, all);
}

int64_t ParameterBytes(const NormProblem& problem) {
  return SumBytes(problem, problem.inputs, IsParameter);
}

bool IsChannelsLast(const BatchNormShape& shape) {
  return shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1;
}

BatchNormShape LaunchShape(const NormProblem& problem) {
  const BatchNormShape& shape = problem.batch_norm_shape;
  const bool pointwise = problem.direction == Direction::kForward &&
                         problem.batch_norm_mode == BatchNormMode::kInference;
  if (!pointwise || !IsChannelsLast(shape)) {
    return shape;
  }
  return {problem.rows, shape.channels, 1, BatchNormLayout::kNhwc};
}

bool IsRowMergeable(const NormProblem& problem) {
  if (problem.direction != Direction::kForward) {
    return false;
  }
  if (problem.op != Op::kBatchNorm) {
    return true;
  }
  TensorRoleSet y_alone;
  y_alone.Add(TensorRole::kY);
  return problem.batch_norm_mode == BatchNormMode::kInference && problem.outputs == y_alone;
}

}  // namespace norm::server
