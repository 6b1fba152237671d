#include "server/scheduler/row_split.h"

namespace norm::server {

RowSplit SplitRows(const NormProblem& problem) {
  if (problem.op != Op::kBatchNorm) return {problem.rows, problem.hidden_size, 1};
  const BatchNormShape& shape = problem.batch_norm_shape;
  if (IsChannelsLast(shape)) return {problem.rows, shape.channels, 1};
  const int64_t rows = problem.rows == 0 ? 0 : shape.batch * shape.channels;
  return {rows, shape.spatial, shape.channels};
}

bool RowsAreIndependent(const NormProblem& problem) {
  if (problem.op == Op::kBatchNorm && problem.batch_norm_mode == BatchNormMode::kTraining) {
    return false;
  }
  return !problem.outputs.Has(TensorRole::kDweight) && !problem.outputs.Has(TensorRole::kDbias);
}

bool TravelsInRows(Op op, TensorRole role) {
  switch (role) {
    case TensorRole::kX:
    case TensorRole::kResidual:
    case TensorRole::kDy:
    case TensorRole::kDresidualSum:
    case TensorRole::kY:
    case TensorRole::kResidualSum:
    case TensorRole::kDx:
      return true;
    case TensorRole::kMean:
    case TensorRole::kRstd:
      return op != Op::kBatchNorm;
    case TensorRole::kWeight:
    case TensorRole::kBias:
    case TensorRole::kRunningMean:
    case TensorRole::kRunningVar:
    case TensorRole::kDweight:
    case TensorRole::kDbias:
      return false;
  }
  return false;
}

int64_t RowBytes(const NormProblem& problem, TensorRole role) {
  const auto element = static_cast<int64_t>(DTypeSize(TensorDType(problem, role)));
  const bool statistic = role == TensorRole::kMean || role == TensorRole::kRstd;
  return statistic ? element : element * SplitRows(problem).row_elements;
}

NormProblem RowsOf(const NormProblem& whole, int64_t rows, bool first) {
  NormProblem part = whole;
  part.outputs = TensorRoleSet();
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (whole.outputs.Has(role) && (first || TravelsInRows(whole.op, role))) {
      part.outputs.Add(role);
    }
  }
  part.rows = rows;
  if (whole.op != Op::kBatchNorm) return part;
  BatchNormShape& shape = part.batch_norm_shape;
  if (!IsChannelsLast(shape)) {
    shape.batch = rows / shape.channels;
    part.rows = shape.batch * shape.spatial;
  } else if (shape.spatial == 1) {
    shape.batch = rows;
  } else {
    shape = {rows, shape.channels, 1, BatchNormLayout::kNhwc};
  }
  return part;
}

}  // namespace norm::server
