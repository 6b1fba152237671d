#include "server/device/cpu_kernel_call.h"

#include <span>

namespace norm::server {
namespace {

struct WorkspaceQuery {
  size_t operator()(std::span<const RmsNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::RmsNormForwardWorkspaceBytes(segments[0])
                                : cpu::RmsNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const RmsNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::RmsNormBackwardWorkspaceBytes(segments[0])
                                : cpu::RmsNormBackwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const LayerNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::LayerNormForwardWorkspaceBytes(segments[0])
                                : cpu::LayerNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const LayerNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::LayerNormBackwardWorkspaceBytes(segments[0])
                                : cpu::LayerNormBackwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const BatchNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::BatchNormForwardWorkspaceBytes(segments[0])
                                : cpu::BatchNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const BatchNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::BatchNormBackwardWorkspaceBytes(segments[0])
                                : cpu::BatchNormBackwardSegmentsWorkspaceBytes(segments);
  }
};

struct RunKernel {
  Workspace workspace;
  ThreadPool& threads;

  Status operator()(std::span<const RmsNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::RmsNormForward(segments[0], workspace, threads)
                                : cpu::RmsNormForwardSegments(segments, workspace, threads);
  }
  Status operator()(std::span<const RmsNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::RmsNormBackward(segments[0], workspace, threads)
                                : cpu::RmsNormBackwardSegments(segments, workspace, threads);
  }
  Status operator()(std::span<const LayerNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::LayerNormForward(segments[0], workspace, threads)
                                : cpu::LayerNormForwardSegments(segments, workspace, threads);
  }
  Status operator()(std::span<const LayerNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::LayerNormBackward(segments[0], workspace, threads)
                                : cpu::LayerNormBackwardSegments(segments, workspace, threads);
  }
  Status operator()(std::span<const BatchNormForwardArgs> segments) const {
    return segments.size() == 1 ? cpu::BatchNormForward(segments[0], workspace, threads)
                                : cpu::BatchNormForwardSegments(segments, workspace, threads);
  }
  Status operator()(std::span<const BatchNormBackwardArgs> segments) const {
    return segments.size() == 1 ? cpu::BatchNormBackward(segments[0], workspace, threads)
                                : cpu::BatchNormBackwardSegments(segments, workspace, threads);
  }
};

}  // namespace

size_t CpuWorkspaceBytes(const KernelCall& call) { return call.Run(WorkspaceQuery{}); }

Status RunOnCpu(const KernelCall& call, Workspace workspace, ThreadPool& threads) {
  return call.Run(RunKernel{workspace, threads});
}

}  // namespace norm::server
