#include "norm/kernels/layer_norm.h"
#include "row_norm/row_norm_backward_cuda.h"
#include "row_norm/row_norm_cuda.h"

namespace norm {

Status LayerNormForward(const LayerNormForwardArgs& args, Workspace workspace,
                        StreamHandle stream) {
  return internal::RowNormForwardCuda(internal::ToRowNorm(args), workspace, stream);
}

size_t LayerNormForwardWorkspaceBytes(const LayerNormForwardArgs& args) {
  return internal::RowNormForwardCudaWorkspaceBytes(internal::ToRowNorm(args));
}

Status LayerNormForwardSegments(std::span<const LayerNormForwardArgs> segments, Workspace workspace,
                                StreamHandle stream) {
  return internal::RowNormForwardSegmentsCuda(segments, stream);
}

size_t LayerNormForwardSegmentsWorkspaceBytes(std::span<const LayerNormForwardArgs> segments) {
  return 0;
}

Status LayerNormBackward(const LayerNormBackwardArgs& args, Workspace workspace,
                         StreamHandle stream) {
  return internal::RowNormBackwardCuda(internal::ToRowNorm(args), workspace, stream);
}

size_t LayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args) {
  return internal::RowNormBackwardCudaWorkspaceBytes(internal::ToRowNorm(args));
}

Status LayerNormBackwardSegments(std::span<const LayerNormBackwardArgs> segments,
                                 Workspace workspace, StreamHandle stream) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  return internal::RowNormBackwardSegmentsCuda(internal::ToRowNormAll(segments), workspace, stream);
}

size_t LayerNormBackwardSegmentsWorkspaceBytes(std::span<const LayerNormBackwardArgs> segments) {
  return internal::RowNormBackwardSegmentsCudaWorkspaceBytes(internal::ToRowNormAll(segments));
}

}  // namespace norm
