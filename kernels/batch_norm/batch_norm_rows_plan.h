// How a channel-last BatchNorm tensor ([values, channels]) is divided: pure functions of its shape,
// dtype and the device.
#pragma once

#include <cstdint>
#include <optional>

#include "batch_norm/batch_norm_rows_device.h"
#include "dispatch/launch_config.h"
#include "norm/kernels/batch_norm.h"

namespace norm::internal {

/// Training in one launch.
struct RowsPlan {
  norm_device::RowsGrid grid = {};
  LaunchConfig launch;
};

/// Nothing where the kernels of several passes have to do: planes, f64, channels that are not whole
/// granules, too few rows to occupy the device, devices without bulk copies.
std::optional<RowsPlan> PlanRowsForward(const BatchNormShape& shape, DType dtype,
                                        const DeviceTraits& device);
std::optional<RowsPlan> PlanRowsBackward(const BatchNormShape& shape, DType dtype,
                                         const DeviceTraits& device);

}  // namespace norm::internal
