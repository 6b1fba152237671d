// Launches of the channel-last kernels.
#pragma once

#include <cstddef>
#include <optional>

#include "batch_norm/batch_norm_rows_plan.h"
#include "norm/kernels/workspace.h"

namespace norm::internal {

/// Bytes of workspace that a training request needs, or nothing where these kernels do not take it:
/// inference, and what PlanRowsForward and PlanRowsBackward leave out.
std::optional<size_t> RowsBytes(const BatchNormForwardArgs& args, const DeviceTraits& device);
std::optional<size_t> RowsBytes(const BatchNormBackwardArgs& args, const DeviceTraits& device);

/// Validated requests that RowsBytes has a size for.
Status LaunchRows(const BatchNormForwardArgs& args, const DeviceTraits& device, Workspace workspace,
                  StreamHandle stream);
Status LaunchRows(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                  Workspace workspace, StreamHandle stream);

}  // namespace norm::internal
