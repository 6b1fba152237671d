#include "server/device/warm_up_batch.h"

#include <cstddef>
#include <initializer_list>
#include <utility>

namespace norm::server {
namespace {

using Role = TensorRole;

TensorRoleSet Roles(std::initializer_list<Role> roles) {
  TensorRoleSet set;
  for (const Role role : roles) set.Add(role);
  return set;
}

NormProblem Problem(Op op, Direction direction, DType dtype, int64_t rows, int64_t hidden_size) {
  NormProblem problem;
  problem.op = op;
  problem.direction = direction;
  problem.dtype = problem.weight_dtype = dtype;
  problem.rows = rows;
  problem.hidden_size = hidden_size;
  problem.batch_norm_shape = {.batch = rows, .channels = hidden_size};
  problem.eps = 1e-5;
  if (direction == Direction::kForward) {
    problem.inputs = Roles({Role::kX, Role::kWeight});
    problem.outputs = Roles({Role::kY});
  } else {
    problem.inputs = Roles({Role::kDy, Role::kX, Role::kWeight});
    problem.outputs = Roles({Role::kDx, Role::kDweight});
  }
  return problem;
}

NormProblem Inference(DType dtype, int64_t rows, int64_t channels) {
  NormProblem problem = Problem(Op::kBatchNorm, Direction::kForward, dtype, rows, channels);
  problem.batch_norm_mode = BatchNormMode::kInference;
  problem.inputs = Roles({Role::kX, Role::kWeight, Role::kRunningMean, Role::kRunningVar});
  return problem;
}

}  // namespace

std::vector<NormProblem> WarmUpProblems() {
  std::vector<NormProblem> problems;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    // Some of the kernels' size classes, of two rows and of a mebibyte or more.
    for (const int64_t hidden : {256, 1024, 4096, 16384}) {
      for (const int64_t rows : {int64_t{2}, (int64_t{1} << 18) / hidden}) {
        for (const Op op : {Op::kRmsNorm, Op::kLayerNorm, Op::kBatchNorm}) {
          problems.push_back(Problem(op, Direction::kForward, dtype, rows, hidden));
          problems.push_back(Problem(op, Direction::kBackward, dtype, rows, hidden));
        }
        problems.push_back(Inference(dtype, rows, hidden));
      }
    }
  }
  // In slices.
  problems.push_back(Problem(Op::kRmsNorm, Direction::kForward, DType::kBF16, 4096, 4096));
  return problems;
}

std::unique_ptr<Batch> WarmUpBatch(const NormProblem& problem, absl::Span<const std::byte> zeros) {
  auto job = std::make_unique<Job>();
  job->problem = problem;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    if (!problem.inputs.Has(static_cast<TensorRole>(i))) continue;
    InputTensor& input = job->inputs[i];
    input.size_bytes = TensorBytes(problem, static_cast<TensorRole>(i));
    input.runs = {zeros.first(static_cast<size_t>(input.size_bytes))};
  }
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(std::move(job));
  return batch;
}

}  // namespace norm::server
