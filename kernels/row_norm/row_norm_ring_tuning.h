// Which rows pass through rings in shared memory, and how they are divided: pure functions.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_ring_shape.h"
#include "row_norm/row_norm_tuning.h"

namespace norm::internal {

/// Whether rings take these rows, and then how: long rows of whole 16-byte granules, on devices with
/// clusters.
bool PlanRowRing(int64_t hidden_size, DType dtype, DeviceTraits device, RowForwardPlan& plan);

constexpr bool UsesRing(const RowForwardPlan& plan) {
  return plan.method == norm_device::RowMethod::kRing ||
         plan.method == norm_device::RowMethod::kLongRing;
}

/// Of a plan that uses rings.
norm_device::RingGranules RowRingGranules(const RowForwardPlan& plan);
norm_device::RingShape RowRingShape(const RowForwardPlan& plan, int64_t hidden_size, DType dtype);

/// Whether clusters claim their rows, which evens out how fast they are, rather than take them by
/// turns: only where a block is busy with its part of a row for as long as a claim takes to come.
bool RowRingClaims(const RowForwardPlan& plan, norm_device::RowKind kind, int64_t hidden_size,
                   DType dtype);

}  // namespace norm::internal
