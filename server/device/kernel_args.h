// From problems and their pointers to the arguments of the kernel that solves them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

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

/// One call of a kernel: the arguments of each of its segments, all of one op and direction. The
/// one place where an op and a direction become a type.
class KernelCall {
 public:
  /// Forgets the segments and keeps their memory for the next ones.
  void Clear();
  /// Adds a segment unless Validate refuses it; says why. `problem` has the op and direction of the
  /// segments before it.
  Status Add(const NormProblem& problem, const TensorPointers& at);

  /// Brings BatchNorm segments of equal batch size side by side: neighbours share launches.
  void GroupAlike();

  bool empty() const { return segments_ == 0; }

  /// Calls `kernel` with the segments, a std::span of one of the six argument structs; it returns
  /// one type for each. Not for an empty call.
  template <typename Kernel>
  auto Run(Kernel&& kernel) const {
    const bool forward = direction_ == Direction::kForward;
    switch (op_) {
      case Op::kRmsNorm:
        return forward ? kernel(Segments<RmsNormForwardArgs>())
                       : kernel(Segments<RmsNormBackwardArgs>());
      case Op::kLayerNorm:
        return forward ? kernel(Segments<LayerNormForwardArgs>())
                       : kernel(Segments<LayerNormBackwardArgs>());
      case Op::kBatchNorm:
        break;
    }
    return forward ? kernel(Segments<BatchNormForwardArgs>())
                   : kernel(Segments<BatchNormBackwardArgs>());
  }

 private:
  template <typename Args>
  std::span<const Args> Segments() const {
    return std::get<std::vector<Args>>(lists_);
  }
  template <typename Args>
  Status AddChecked(const Args& args);

  Op op_ = Op::kRmsNorm;
  Direction direction_ = Direction::kForward;
  size_t segments_ = 0;
  std::tuple<std::vector<RmsNormForwardArgs>, std::vector<RmsNormBackwardArgs>,
             std::vector<LayerNormForwardArgs>, std::vector<LayerNormBackwardArgs>,
             std::vector<BatchNormForwardArgs>, std::vector<BatchNormBackwardArgs>>
      lists_;
};

}  // namespace norm::server
