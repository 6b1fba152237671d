#include "server/device/cuda_kernel_call.h"

namespace norm::server {
namespace {

struct WorkspaceQuery {
  size_t operator()(const RmsNormForwardArgs& args) const {
    return norm::RmsNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const RmsNormBackwardArgs& args) const {
    return norm::RmsNormBackwardWorkspaceBytes(args);
  }
  size_t operator()(const LayerNormForwardArgs& args) const {
    return norm::LayerNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const LayerNormBackwardArgs& args) const {
    return norm::LayerNormBackwardWorkspaceBytes(args);
  }
  size_t operator()(const BatchNormForwardArgs& args) const {
    return norm::BatchNormForwardWorkspaceBytes(args);
  }
  size_t operator()(const BatchNormBackwardArgs& args) const {
    return norm::BatchNormBackwardWorkspaceBytes(args);
  }
};

struct Enqueue {
  Workspace workspace;
  StreamHandle stream;

  Status operator()(const RmsNormForwardArgs& args) const {
    return norm::RmsNormForward(args, workspace, stream);
  }
  Status operator()(const RmsNormBackwardArgs& args) const {
    return norm::RmsNormBackward(args, workspace, stream);
  }
  Status operator()(const LayerNormForwardArgs& args) const {
    return norm::LayerNormForward(args, workspace, stream);
  }
  Status operator()(const LayerNormBackwardArgs& args) const {
    return norm::LayerNormBackward(args, workspace, stream);
  }
  Status operator()(const BatchNormForwardArgs& args) const {
    return norm::BatchNormForward(args, workspace, stream);
  }
  Status operator()(const BatchNormBackwardArgs& args) const {
    return norm::BatchNormBackward(args, workspace, stream);
  }
};

}  // namespace

size_t CudaWorkspaceBytes(const NormProblem& problem, const TensorPointers& at) {
  return WithKernelArgs(problem, at, WorkspaceQuery{});
}

Status EnqueueOnCuda(const NormProblem& problem, const TensorPointers& at, Workspace workspace,
                     StreamHandle stream) {
  return WithKernelArgs(problem, at, Enqueue{workspace, stream});
}

}  // namespace norm::server
