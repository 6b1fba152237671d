#include "norm/kernels/rms_norm.h"
#include "row_norm/row_norm_backward_cuda.h"
#include "row_norm/row_norm_cuda.h"

namespace norm {

Status RmsNormForward(const RmsNormForwardArgs& args, Workspace workspace, StreamHandle stream) {
  return internal::RowNormForwardCuda(internal::ToRowNorm(args), workspace, stream);
}

size_t RmsNormForwardWorkspaceBytes(const RmsNormForwardArgs& args) {
  return internal::RowNormForwardCudaWorkspaceBytes(internal::ToRowNorm(args));
}

Status RmsNormForwardSegments(std::span<const RmsNormForwardArgs> segments, Workspace workspace,
                              StreamHandle stream) {
  return internal::RowNormForwardSegmentsCuda(segments, stream);
}

size_t RmsNormForwardSegmentsWorkspaceBytes(std::span<const RmsNormForwardArgs> segments) {
  return 0;
}

Status RmsNormBackward(const RmsNormBackwardArgs& args, Workspace workspace, StreamHandle stream) {
  return internal::RowNormBackwardCuda(internal::ToRowNorm(args), workspace, stream);
}

size_t RmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args) {
  return internal::RowNormBackwardCudaWorkspaceBytes(internal::ToRowNorm(args));
}

Status RmsNormBackwardSegments(std::span<const RmsNormBackwardArgs> segments, Workspace workspace,
                               StreamHandle stream) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  return internal::RowNormBackwardSegmentsCuda(internal::ToRowNormAll(segments), workspace, stream);
}

size_t RmsNormBackwardSegmentsWorkspaceBytes(std::span<const RmsNormBackwardArgs> segments) {
  return internal::RowNormBackwardSegmentsCudaWorkspaceBytes(internal::ToRowNormAll(segments));
}

}  // namespace norm
