// Whether a BatchNorm tensor can stay on the chip between its statistics and its normalization, and
// how it is divided then: a pure function of shape, dtype and device.
#pragma once

#include <cstdint>
#include <optional>

#include "batch_norm/batch_norm_ring.h"
#include "dispatch/launch_config.h"
#include "norm/kernels/batch_norm.h"

namespace norm::internal {

struct RingPlan {
  norm_device::RingShape shape = {};
  LaunchConfig launch;
  int64_t published_words = 0;  // of one segment, in scratch
  bool folded = false;          // an item is several channels, its planes no whole granules
};

/// Nothing where the kernels of several passes have to do: other layouts and dtypes, planes that
/// are not whole granules of 16 bytes, channels larger than the chip, devices before sm_80.
std::optional<RingPlan> PlanForwardRing(const BatchNormShape& shape, DType dtype,
                                        const DeviceTraits& device);
std::optional<RingPlan> PlanBackwardRing(const BatchNormShape& shape, DType dtype,
                                         const DeviceTraits& device);

}  // namespace norm::internal
