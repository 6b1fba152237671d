// RMSNorm and LayerNorm on the current CUDA device.
#pragma once

#include <cstddef>
#include <span>

#include "row_norm/row_norm.h"

namespace norm::internal {

/// The public entry points of both ops come down to these; the contract is theirs.
Status RowNormForwardCuda(const RowNormForwardArgs& args, Workspace workspace, StreamHandle stream);
size_t RowNormForwardCudaWorkspaceBytes(const RowNormForwardArgs& args);
/// Args: RmsNormForwardArgs or LayerNormForwardArgs.
template <typename Args>
Status RowNormForwardSegmentsCuda(std::span<const Args> segments, StreamHandle stream);
Status RowNormBackwardCuda(const RowNormBackwardArgs& args, Workspace workspace,
                           StreamHandle stream);
size_t RowNormBackwardCudaWorkspaceBytes(const RowNormBackwardArgs& args);

}  // namespace norm::internal
