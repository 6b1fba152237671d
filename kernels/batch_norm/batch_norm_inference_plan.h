// Which inference kernel takes a tensor, and how it is divided: pure functions of its shape and
// dtype.
#pragma once

#include <cstdint>
#include <optional>

#include "batch_norm/batch_norm_inference.h"
#include "dispatch/launch_config.h"
#include "norm/kernels/batch_norm.h"

namespace norm::internal {

struct PlaneInferencePlan {
  int64_t part_images = 0;  // of a part of a tensor, whose elements are counted in 32 bits
  bool whole_planes = false;
  int64_t image_blocks = 0;     // side by side, where blocks are over images; aligned tensors only
  int64_t images_of_block = 0;  // the same
};

/// Nothing for other layouts and f64, empty tensors, planes below a granule, images whose elements
/// 32 bits do not count.
std::optional<PlaneInferencePlan> PlanPlaneInference(const BatchNormShape& shape, DType dtype);
/// Blocks for `elements` elements.
int64_t PlaneInferenceBlocks(int64_t elements, DType dtype);

struct RowInferencePlan {
  bool wide = false;  // granules of 16 bytes, else of one element
  bool tall = false;  // blocks of kTallRowGranules
  int column_bits = 0;
  int64_t slices = 1;  // of channels: blocks side by side
  LaunchConfig launch;
};

/// Nothing for planes, f64 and empty tensors. `aligned`: the tensors are multiples of 16.
std::optional<RowInferencePlan> PlanRowInference(const BatchNormShape& shape, DType dtype,
                                                 bool aligned);

}  // namespace norm::internal
