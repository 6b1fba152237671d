// RMSNorm and LayerNorm on host memory: the internal entry points behind the public cpu::
// functions.
#pragma once

#include <algorithm>
#include <span>

#include "norm/kernels/thread_pool.h"
#include "norm/kernels/workspace.h"
#include "row_norm/row_norm.h"
#include "validation/argument_checks.h"

namespace norm::internal {

/// Arithmetic is in f64 for every dtype, rounded once per output: sums neither overflow nor stall,
/// and rows with large means or tiny spreads keep full precision. Needs no workspace.
Status RowNormForwardCpu(const RowNormForwardArgs& args, ThreadPool& threads);

/// One segment after the other. Args: RmsNormForwardArgs or LayerNormForwardArgs.
template <typename Args>
Status RowNormForwardSegmentsCpu(std::span<const Args> segments, ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(ValidateRowSegments(segments));
  for (const Args& segment : segments) {
    NORM_RETURN_IF_ERROR(RowNormForwardCpu(ToRowNorm(segment), threads));
  }
  return Status();
}

/// Rows [begin, end) of a call that Validate accepts, with an output format other than kSameAsInput.
void RowNormQuantizedRowsCpu(const RowNormForwardArgs& args, int64_t begin, int64_t end);

Status RowNormBackwardCpu(const RowNormBackwardArgs& args, Workspace workspace,
                          ThreadPool& threads);
size_t RowNormBackwardCpuWorkspaceBytes(const RowNormBackwardArgs& args);

/// As RowNormForwardSegmentsCpu; the segments use the workspace in turn.
template <typename Args>
size_t RowNormBackwardSegmentsCpuWorkspaceBytes(std::span<const Args> segments) {
  size_t bytes = 0;
  for (const Args& segment : segments) {
    bytes = std::max(bytes, RowNormBackwardCpuWorkspaceBytes(ToRowNorm(segment)));
  }
  return bytes;
}
template <typename Args>
Status RowNormBackwardSegmentsCpu(std::span<const Args> segments, Workspace workspace,
                                  ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(ValidateRowSegments(segments));
  NORM_RETURN_IF_ERROR(
      CheckWorkspace(workspace, RowNormBackwardSegmentsCpuWorkspaceBytes(segments)));
  for (const Args& segment : segments) {
    NORM_RETURN_IF_ERROR(RowNormBackwardCpu(ToRowNorm(segment), workspace, threads));
  }
  return Status();
}

}  // namespace norm::internal
