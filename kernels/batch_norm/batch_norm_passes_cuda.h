// BatchNorm as several passes over the tensor: for any shape, dtype and device. Arguments have been
// validated and workspaces measured.
#pragma once

#include <cstddef>

#include "dispatch/launch_config.h"
#include "norm/kernels/batch_norm.h"

namespace norm::internal {

Status ForwardPasses(const BatchNormForwardArgs& args, const DeviceTraits& device,
                     Workspace workspace, StreamHandle stream);
size_t ForwardPassesBytes(const BatchNormForwardArgs& args, const DeviceTraits& device);

Status BackwardPasses(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                      Workspace workspace, StreamHandle stream);
size_t BackwardPassesBytes(const BatchNormBackwardArgs& args, const DeviceTraits& device);

/// Mean and rstd of the batch, [channels] each, in the workspace of BackwardPasses.
struct BatchStatistics {
  const void* mean = nullptr;
  const void* rstd = nullptr;
};
/// Only those, of args.x.
Status StatisticsPasses(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                        Workspace workspace, StreamHandle stream, BatchStatistics& result);

}  // namespace norm::internal
