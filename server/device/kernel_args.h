// From a problem and its pointers to the argument struct of the kernel that solves it.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "norm/kernels/batch_norm.h"
#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"
#include "server/scheduler/norm_problem.h"

namespace norm::server {

/// Where each tensor of a problem is, by TensorRole; null where the problem has none.
struct TensorPointers {
  std::array<const void*, kTensorRoleCount> inputs{};
  std::array<void*, kTensorRoleCount> outputs{};

  const void* in(TensorRole role) const { return inputs[static_cast<size_t>(role)]; }
  void* out(TensorRole role) const { return outputs[static_cast<size_t>(role)]; }
};

RmsNormForwardArgs MakeRmsNormForwardArgs(const NormProblem& problem, const TensorPointers& at);
RmsNormBackwardArgs MakeRmsNormBackwardArgs(const NormProblem& problem, const TensorPointers& at);
LayerNormForwardArgs MakeLayerNormForwardArgs(const NormProblem& problem, const TensorPointers& at);
LayerNormBackwardArgs MakeLayerNormBackwardArgs(const NormProblem& problem,
                                                const TensorPointers& at);
BatchNormForwardArgs MakeBatchNormForwardArgs(const NormProblem& problem, const TensorPointers& at);
BatchNormBackwardArgs MakeBatchNormBackwardArgs(const NormProblem& problem,
                                                const TensorPointers& at);

/// Calls `kernel` with the arguments of this problem: the one place where an op and a direction
/// become a type. `kernel` takes each of the six argument structs and returns one type.
template <typename Kernel>
auto WithKernelArgs(const NormProblem& problem, const TensorPointers& at, Kernel&& kernel) {
  const bool forward = problem.direction == Direction::kForward;
  switch (problem.op) {
    case Op::kRmsNorm:
      return forward ? kernel(MakeRmsNormForwardArgs(problem, at))
                     : kernel(MakeRmsNormBackwardArgs(problem, at));
    case Op::kLayerNorm:
      return forward ? kernel(MakeLayerNormForwardArgs(problem, at))
                     : kernel(MakeLayerNormBackwardArgs(problem, at));
    case Op::kBatchNorm:
      break;
  }
  return forward ? kernel(MakeBatchNormForwardArgs(problem, at))
                 : kernel(MakeBatchNormBackwardArgs(problem, at));
}

}  // namespace norm::server
