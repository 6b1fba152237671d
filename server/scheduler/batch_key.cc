#include "server/scheduler/batch_key.h"

#include <bit>

namespace norm::server {

BatchKey MakeBatchKey(const Job& job, ParameterInterner& parameters) {
  const NormProblem& problem = job.problem;
  BatchKey key;
  key.op = problem.op;
  key.dtype = problem.dtype;
  key.weight_dtype = problem.weight_dtype;
  key.rounding = problem.rounding;
  key.inputs = problem.inputs;
  key.outputs = problem.outputs;
  key.hidden_size = problem.hidden_size;
  if (problem.op == Op::kBatchNorm && !IsChannelsLast(problem.batch_norm_shape)) {
    key.channels_last = false;
    key.spatial = problem.batch_norm_shape.spatial;
  }
  key.eps_bits = std::bit_cast<uint64_t>(problem.eps);
  key.weight_offset_bits = std::bit_cast<uint64_t>(problem.weight_offset);
  key.parameters = parameters.Intern(job);
  return key;
}

}  // namespace norm::server
