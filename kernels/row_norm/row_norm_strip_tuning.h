// How strip kernels (row_norm_strip_device.h) are launched: rows of 16-bit elements whose length is
// no multiple of 16 bytes.
#pragma once

#include <cstdint>

#include "dispatch/launch_config.h"
#include "norm/kernels/dtype.h"
#include "row_norm/row_norm_backward_tuning.h"
#include "row_norm/row_norm_strip_device.h"
#include "row_norm/row_norm_tuning.h"

namespace norm::internal {

/// Whether strips hold such rows on this device; fills the plan if so.
bool PlanStripForward(int64_t hidden_size, DType dtype, DeviceTraits device, RowForwardPlan& plan);
bool PlanStripBackward(norm_device::RowKind kind, int64_t hidden_size, DType dtype,
                       int ring_tensors, DeviceTraits device, RowBackwardPlan& plan);

}  // namespace norm::internal
