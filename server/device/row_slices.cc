#include "server/device/row_slices.h"

#include <algorithm>

namespace norm::server {
namespace {

bool CutsImages(const NormProblem& problem) {
  return problem.op == Op::kBatchNorm && !IsChannelsLast(problem.batch_norm_shape);
}

}  // namespace

RowSlices PlanRowSlices(const NormProblem& problem, int64_t slice_bytes, int max_slices) {
  RowSlices slices;
  slices.units = CutsImages(problem) ? problem.batch_norm_shape.batch : problem.rows;
  const int64_t bytes = ProblemBytes(problem);
  const int64_t wanted = std::clamp<int64_t>(bytes / slice_bytes, 1, max_slices);
  slices.units_per_slice = std::max<int64_t>(1, (slices.units + wanted - 1) / wanted);
  slices.count = static_cast<int>(
      std::max<int64_t>(1, (slices.units + slices.units_per_slice - 1) / slices.units_per_slice));
  return slices;
}

NormProblem WithUnits(NormProblem problem, int64_t units) {
  problem.rows = units;
  if (CutsImages(problem)) {
    problem.rows = units * problem.batch_norm_shape.spatial;
    problem.batch_norm_shape.batch = units;
  } else if (problem.op == Op::kBatchNorm) {
    problem.batch_norm_shape.batch = units;
    problem.batch_norm_shape = LaunchShape(problem);
  }
  return problem;
}

NormProblem SliceOf(const NormProblem& problem, const RowSlices& slices, int slice) {
  return WithUnits(problem,
                   std::min(slices.units_per_slice, slices.units - slices.first_unit(slice)));
}

int64_t SliceOffset(const NormProblem& problem, const RowSlices& slices, int slice,
                    TensorRole role) {
  return TensorBytes(WithUnits(problem, slices.first_unit(slice)), role);
}

}  // namespace norm::server
