#include "server/scheduler/batch_key.h"

#include <bit>

namespace norm::server {

JobKeys MakeJobKeys(const Job& job, ParameterInterner& parameters) {
  const NormProblem& problem = job.problem;
  JobKeys keys;
  keys.batch.op = problem.op;
  keys.batch.direction = problem.direction;
  keys.batch.dtype = problem.dtype;
  keys.batch.weight_dtype = problem.weight_dtype;
  keys.batch.hidden_size = problem.hidden_size;
  if (problem.op == Op::kBatchNorm) {
    const BatchNormShape shape = LaunchShape(problem);
    keys.batch.mode = problem.batch_norm_mode;
    keys.batch.layout = shape.layout;
    keys.batch.spatial = shape.spatial;
  }
  if (IsRowMergeable(problem)) {
    SegmentKey& segment = keys.segment.emplace();
    segment.rounding = problem.rounding;
    segment.inputs = problem.inputs;
    segment.outputs = problem.outputs;
    segment.eps_bits = std::bit_cast<uint64_t>(problem.eps);
    segment.weight_offset_bits = std::bit_cast<uint64_t>(problem.weight_offset);
    segment.parameters = parameters.Intern(job);
  }
  return keys;
}

bool SharesLaunches(const NormProblem& problem) { return ProblemBytes(problem) < kMinLoneJobBytes; }

}  // namespace norm::server
