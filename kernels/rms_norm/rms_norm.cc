#include "norm/kernels/rms_norm.h"

#include "row_norm/row_norm.h"
#include "row_norm/row_norm_cpu.h"

namespace norm {

Status Validate(const RmsNormForwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status Validate(const RmsNormBackwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status ValidateSegments(std::span<const RmsNormForwardArgs> segments) {
  return internal::ValidateRowSegments(segments);
}

Status ValidateSegments(std::span<const RmsNormBackwardArgs> segments) {
  return internal::ValidateRowSegments(segments);
}

namespace cpu {

Status RmsNormForward(const RmsNormForwardArgs& args, Workspace workspace, ThreadPool& threads) {
  return internal::RowNormForwardCpu(internal::ToRowNorm(args), threads);
}

size_t RmsNormForwardWorkspaceBytes(const RmsNormForwardArgs& args) { return 0; }

Status RmsNormForwardSegments(std::span<const RmsNormForwardArgs> segments, Workspace workspace,
                              ThreadPool& threads) {
  return internal::RowNormForwardSegmentsCpu(segments, threads);
}

size_t RmsNormForwardSegmentsWorkspaceBytes(std::span<const RmsNormForwardArgs> segments) {
  return 0;
}

Status RmsNormBackward(const RmsNormBackwardArgs& args, Workspace workspace, ThreadPool& threads) {
  return internal::RowNormBackwardCpu(internal::ToRowNorm(args), workspace, threads);
}

size_t RmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args) {
  return internal::RowNormBackwardCpuWorkspaceBytes(internal::ToRowNorm(args));
}

Status RmsNormBackwardSegments(std::span<const RmsNormBackwardArgs> segments, Workspace workspace,
                               ThreadPool& threads) {
  return internal::RowNormBackwardSegmentsCpu(segments, workspace, threads);
}

size_t RmsNormBackwardSegmentsWorkspaceBytes(std::span<const RmsNormBackwardArgs> segments) {
  return internal::RowNormBackwardSegmentsCpuWorkspaceBytes(segments);
}

}  // namespace cpu
}  // namespace norm
