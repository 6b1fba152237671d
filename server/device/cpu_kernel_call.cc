#include "server/device/cpu_kernel_call.h"

namespace norm::server {
namespace {

struct WorkspaceQuery {
  size_t operator()(const RmsNormForwardArgs& args) const {
    return cpu::RmsNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const RmsNormBackwardArgs& args) const {
    return cpu::RmsNormBackwardWorkspaceBytes(args);
  }
  size_t operator()(const LayerNormForwardArgs& args) const {
    return cpu::LayerNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const LayerNormBackwardArgs& args) const {
    return cpu::LayerNormBackwardWorkspaceBytes(args);
  }
  size_t operator()(const BatchNormForwardArgs& args) const {
    return cpu::BatchNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const BatchNormBackwardArgs& args) const {
    return cpu::BatchNormBackwardWorkspaceBytes(args);
  }
};

struct Run {
  Workspace workspace;
  ThreadPool& threads;

  Status operator()(const RmsNormForwardArgs& args) const {
    return cpu::RmsNormForward(args, workspace, threads);
  }
  Status operator()(const RmsNormBackwardArgs& args) const {
    return cpu::RmsNormBackward(args, workspace, threads);
  }
  Status operator()(const LayerNormForwardArgs& args) const {
    return cpu::LayerNormForward(args, workspace, threads);
  }
  Status operator()(const LayerNormBackwardArgs& args) const {
    return cpu::LayerNormBackward(args, workspace, threads);
  }
  Status operator()(const BatchNormForwardArgs& args) const {
    return cpu::BatchNormForward(args, workspace, threads);
  }
  Status operator()(const BatchNormBackwardArgs& args) const {
    return cpu::BatchNormBackward(args, workspace, threads);
  }
};

}  // namespace

size_t CpuWorkspaceBytes(const NormProblem& problem, const TensorPointers& at) {
  return WithKernelArgs(problem, at, WorkspaceQuery{});
}

Status RunOnCpu(const NormProblem& problem, const TensorPointers& at, Workspace workspace,
                ThreadPool& threads) {
  return WithKernelArgs(problem, at, Run{workspace, threads});
}

}  // namespace norm::server
