// How a BatchNorm tensor is divided over blocks: pure functions of its shape, dtype and the device.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_device.h"
#include "dispatch/launch_config.h"
#include "norm/kernels/batch_norm.h"

namespace norm::internal {

/// Launches of the passes over a tensor. Nothing here depends on pointers or on data.
struct BatchNormPlan {
  norm_device::BatchShape shape = {};
  norm_device::ChannelMajor major = norm_device::ChannelMajor::kPlanes;
  norm_device::ChunkOwner owner = norm_device::ChunkOwner::kBlock;
  int granule = 1;  // consecutive elements per access
  norm_device::ChunkLayout chunks = {};
  LaunchConfig reduction;      // moments and gradient sums
  LaunchConfig elementwise;    // normalize and input gradient
  int64_t segment_values = 1;  // of a plane, per item of an elementwise pass
  LaunchConfig channels;       // channel statistics and gradients
};

/// With no values per channel only `shape` and `channels` are set.
BatchNormPlan PlanBatchNorm(const BatchNormShape& shape, DType dtype, DeviceTraits device);

}  // namespace norm::internal
