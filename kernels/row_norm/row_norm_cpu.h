// RMSNorm and LayerNorm on host memory: the internal entry points behind the public cpu::
// functions.
#pragma once

#include <span>

#include "norm/kernels/thread_pool.h"
#include "norm/kernels/workspace.h"
#include "row_norm/row_norm.h"

namespace norm::internal {

/// Arithmetic is in f64 for every dtype, rounded once per output: sums neither overflow nor stall,
/// and rows with large means or tiny spreads keep full precision. Needs no workspace.
Status RowNormForwardCpu(const RowNormForwardArgs& args, ThreadPool& threads);

/// One segment after the other. Args: RmsNormForwardArgs or LayerNormForwardArgs.
template <typename Args>
Status RowNormForwardSegmentsCpu(std::span<const Args> segments, ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(ValidateForwardSegments(segments));
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

}  // namespace norm::internal
