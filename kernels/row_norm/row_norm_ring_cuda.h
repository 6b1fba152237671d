// Launches of the ring kernels.
#pragma once

#include <cstddef>

#include "norm/kernels/workspace.h"
#include "row_norm/row_norm.h"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_tuning.h"

namespace norm::internal {

/// For the counter from which clusters claim rows.
size_t RowRingWorkspaceBytes(const RowNormForwardArgs& args, const RowForwardPlan& plan);

/// `params` are those of `args`.
Status LaunchRowRing(const RowNormForwardArgs& args, const RowForwardPlan& plan,
                     const norm_device::RowForwardParams& params, Workspace workspace,
                     StreamHandle stream);

/// The kernel that takes RowForwardSegments of requests like `args`.
const void* RowRingSegmentsKernel(const RowNormForwardArgs& args, const RowForwardPlan& plan);

}  // namespace norm::internal
