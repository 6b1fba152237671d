#include "server/device/cuda_kernel_call.h"

#include <span>

namespace norm::server {
namespace {

// A segment alone has launches of its own kind, faster than a table of one.

struct WorkspaceQuery {
  size_t operator()(std::span<const RmsNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::RmsNormForwardWorkspaceBytes(segments[0])
                                : norm::RmsNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const RmsNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::RmsNormBackwardWorkspaceBytes(segments[0])
                                : norm::RmsNormBackwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const LayerNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::LayerNormForwardWorkspaceBytes(segments[0])
                                : norm::LayerNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const LayerNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::LayerNormBackwardWorkspaceBytes(segments[0])
                                : norm::LayerNormBackwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const BatchNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::BatchNormForwardWorkspaceBytes(segments[0])
                                : norm::BatchNormForwardSegmentsWorkspaceBytes(segments);
  }
  size_t operator()(std::span<const BatchNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::BatchNormBackwardWorkspaceBytes(segments[0])
                                : norm::BatchNormBackwardSegmentsWorkspaceBytes(segments);
  }
};

struct Enqueue {
  Workspace workspace;
  StreamHandle stream;

  Status operator()(std::span<const RmsNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::RmsNormForward(segments[0], workspace, stream)
                                : norm::RmsNormForwardSegments(segments, workspace, stream);
  }
  Status operator()(std::span<const RmsNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::RmsNormBackward(segments[0], workspace, stream)
                                : norm::RmsNormBackwardSegments(segments, workspace, stream);
  }
  Status operator()(std::span<const LayerNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::LayerNormForward(segments[0], workspace, stream)
                                : norm::LayerNormForwardSegments(segments, workspace, stream);
  }
  Status operator()(std::span<const LayerNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::LayerNormBackward(segments[0], workspace, stream)
                                : norm::LayerNormBackwardSegments(segments, workspace, stream);
  }
  Status operator()(std::span<const BatchNormForwardArgs> segments) const {
    return segments.size() == 1 ? norm::BatchNormForward(segments[0], workspace, stream)
                                : norm::BatchNormForwardSegments(segments, workspace, stream);
  }
  Status operator()(std::span<const BatchNormBackwardArgs> segments) const {
    return segments.size() == 1 ? norm::BatchNormBackward(segments[0], workspace, stream)
                                : norm::BatchNormBackwardSegments(segments, workspace, stream);
  }
};

}  // namespace

size_t CudaWorkspaceBytes(const KernelCall& call) { return call.Run(WorkspaceQuery{}); }

Status EnqueueOnCuda(const KernelCall& call, Workspace workspace, StreamHandle stream) {
  return call.Run(Enqueue{workspace, stream});
}

}  // namespace norm::server
