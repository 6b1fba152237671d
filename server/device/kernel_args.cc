#include "server/device/kernel_args.h"

#include <algorithm>

namespace norm::server {
namespace {

using Role = TensorRole;

bool Trains(const NormProblem& problem) {
  return problem.batch_norm_mode == BatchNormMode::kTraining;
}

}  // namespace

RmsNormForwardArgs MakeRmsNormForwardArgs(const NormProblem& problem, const TensorPointers& at) {
  RmsNormForwardArgs args;
  args.x = at.in(Role::kX);
  args.residual = at.in(Role::kResidual);
  args.weight = at.in(Role::kWeight);
  args.y = at.out(Role::kY);
  args.residual_sum = at.out(Role::kResidualSum);
  args.rstd = at.out(Role::kRstd);
  args.rows = problem.rows;
  args.hidden_size = problem.hidden_size;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  args.weight_offset = problem.weight_offset;
  args.rounding = problem.rounding;
  return args;
}

RmsNormBackwardArgs MakeRmsNormBackwardArgs(const NormProblem& problem, const TensorPointers& at) {
  RmsNormBackwardArgs args;
  args.dy = at.in(Role::kDy);
  args.x = at.in(Role::kX);
  args.weight = at.in(Role::kWeight);
  args.rstd = at.in(Role::kRstd);
  args.dresidual_sum = at.in(Role::kDresidualSum);
  args.dx = at.out(Role::kDx);
  args.dweight = at.out(Role::kDweight);
  args.rows = problem.rows;
  args.hidden_size = problem.hidden_size;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  args.weight_offset = problem.weight_offset;
  return args;
}

LayerNormForwardArgs MakeLayerNormForwardArgs(const NormProblem& problem,
                                              const TensorPointers& at) {
  LayerNormForwardArgs args;
  args.x = at.in(Role::kX);
  args.residual = at.in(Role::kResidual);
  args.weight = at.in(Role::kWeight);
  args.bias = at.in(Role::kBias);
  args.y = at.out(Role::kY);
  args.residual_sum = at.out(Role::kResidualSum);
  args.mean = at.out(Role::kMean);
  args.rstd = at.out(Role::kRstd);
  args.rows = problem.rows;
  args.hidden_size = problem.hidden_size;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  args.rounding = problem.rounding;
  return args;
}

LayerNormBackwardArgs MakeLayerNormBackwardArgs(const NormProblem& problem,
                                                const TensorPointers& at) {
  LayerNormBackwardArgs args;
  args.dy = at.in(Role::kDy);
  args.x = at.in(Role::kX);
  args.weight = at.in(Role::kWeight);
  args.mean = at.in(Role::kMean);
  args.rstd = at.in(Role::kRstd);
  args.dresidual_sum = at.in(Role::kDresidualSum);
  args.dx = at.out(Role::kDx);
  args.dweight = at.out(Role::kDweight);
  args.dbias = at.out(Role::kDbias);
  args.rows = problem.rows;
  args.hidden_size = problem.hidden_size;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  return args;
}

BatchNormForwardArgs MakeBatchNormForwardArgs(const NormProblem& problem,
                                              const TensorPointers& at) {
  BatchNormForwardArgs args;
  args.x = at.in(Role::kX);
  args.weight = at.in(Role::kWeight);
  args.bias = at.in(Role::kBias);
  args.running_mean = at.in(Role::kRunningMean);
  args.running_var = at.in(Role::kRunningVar);
  args.y = at.out(Role::kY);
  args.mean = at.out(Role::kMean);
  args.rstd = at.out(Role::kRstd);
  args.new_running_mean = at.out(Role::kRunningMean);
  args.new_running_var = at.out(Role::kRunningVar);
  args.shape = problem.batch_norm_shape;
  args.mode = problem.batch_norm_mode;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  args.momentum = problem.momentum;
  return args;
}

BatchNormBackwardArgs MakeBatchNormBackwardArgs(const NormProblem& problem,
                                                const TensorPointers& at) {
  BatchNormBackwardArgs args;
  args.dy = at.in(Role::kDy);
  args.x = at.in(Role::kX);
  args.weight = at.in(Role::kWeight);
  args.mean = at.in(Trains(problem) ? Role::kMean : Role::kRunningMean);
  args.rstd = at.in(Role::kRstd);
  args.running_var = at.in(Role::kRunningVar);
  args.dx = at.out(Role::kDx);
  args.dweight = at.out(Role::kDweight);
  args.dbias = at.out(Role::kDbias);
  args.shape = problem.batch_norm_shape;
  args.mode = problem.batch_norm_mode;
  args.dtype = problem.dtype;
  args.weight_dtype = problem.weight_dtype;
  args.eps = problem.eps;
  return args;
}

void KernelCall::Clear() {
  segments_ = 0;
  std::apply([](auto&... lists) { (lists.clear(), ...); }, lists_);
}

void KernelCall::GroupAlike() {
  const auto by_batch = [](const auto& a, const auto& b) { return a.shape.batch < b.shape.batch; };
  auto& forward = std::get<std::vector<BatchNormForwardArgs>>(lists_);
  auto& backward = std::get<std::vector<BatchNormBackwardArgs>>(lists_);
  std::sort(forward.begin(), forward.end(), by_batch);
  std::sort(backward.begin(), backward.end(), by_batch);
}

template <typename Args>
Status KernelCall::AddChecked(const Args& args) {
  NORM_RETURN_IF_ERROR(Validate(args));
  std::get<std::vector<Args>>(lists_).push_back(args);
  ++segments_;
  return Status();
}

Status KernelCall::Add(const NormProblem& problem, const TensorPointers& at) {
  op_ = problem.op;
  direction_ = problem.direction;
  const bool forward = direction_ == Direction::kForward;
  switch (op_) {
    case Op::kRmsNorm:
      return forward ? AddChecked(MakeRmsNormForwardArgs(problem, at))
                     : AddChecked(MakeRmsNormBackwardArgs(problem, at));
    case Op::kLayerNorm:
      return forward ? AddChecked(MakeLayerNormForwardArgs(problem, at))
                     : AddChecked(MakeLayerNormBackwardArgs(problem, at));
    case Op::kBatchNorm:
      break;
  }
  return forward ? AddChecked(MakeBatchNormForwardArgs(problem, at))
                 : AddChecked(MakeBatchNormBackwardArgs(problem, at));
}

}  // namespace norm::server
