#include "norm/kernels/layer_norm.h"

#include "row_norm/row_norm.h"
#include "row_norm/row_norm_cpu.h"

namespace norm {

Status Validate(const LayerNormForwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status Validate(const LayerNormBackwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status ValidateSegments(std::span<const LayerNormForwardArgs> segments) {
  return internal::ValidateRowSegments(segments);
}

Status ValidateSegments(std::span<const LayerNormBackwardArgs> segments) {
  return internal::ValidateRowSegments(segments);
}

namespace cpu {

Status LayerNormForward(const LayerNormForwardArgs& args, Workspace workspace,
                        ThreadPool& threads) {
  return internal::RowNormForwardCpu(internal::ToRowNorm(args), threads);
}

size_t LayerNormForwardWorkspaceBytes(const LayerNormForwardArgs& args) { return 0; }

Status LayerNormForwardSegments(std::span<const LayerNormForwardArgs> segments, Workspace workspace,
                                ThreadPool& threads) {
  return internal::RowNormForwardSegmentsCpu(segments, threads);
}

size_t LayerNormForwardSegmentsWorkspaceBytes(std::span<const LayerNormForwardArgs> segments) {
  return 0;
}

Status LayerNormBackward(const LayerNormBackwardArgs& args, Workspace workspace,
                         ThreadPool& threads) {
  return internal::RowNormBackwardCpu(internal::ToRowNorm(args), workspace, threads);
}

size_t LayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args) {
  return internal::RowNormBackwardCpuWorkspaceBytes(internal::ToRowNorm(args));
}

Status LayerNormBackwardSegments(std::span<const LayerNormBackwardArgs> segments,
                                 Workspace workspace, ThreadPool& threads) {
  return internal::RowNormBackwardSegmentsCpu(segments, workspace, threads);
}

size_t LayerNormBackwardSegmentsWorkspaceBytes(std::span<const LayerNormBackwardArgs> segments) {
  return internal::RowNormBackwardSegmentsCpuWorkspaceBytes(segments);
}

}  // namespace cpu
}  // namespace norm
