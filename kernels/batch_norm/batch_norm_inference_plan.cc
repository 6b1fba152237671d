#include "batch_norm/batch_norm_inference_plan.h"

#include <algorithm>

namespace norm::internal {
namespace {

using norm_device::kRowThreads;

constexpr int64_t kGranuleBytes = 16;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool IsNarrowAndFull(const BatchNormShape& shape, DType dtype) {
  return dtype != DType::kF64 && shape.batch > 0 && shape.spatial > 0;
}

}  // namespace

int64_t PlaneInferenceBlocks(int64_t elements, DType dtype) {
  const int64_t block_elements =
      norm_device::kPlaneBlockGranules * kGranuleBytes / static_cast<int64_t>(DTypeSize(dtype));
  return CeilDiv(elements, block_elements);
}

std::optional<PlaneInferencePlan> PlanPlaneInference(const BatchNormShape& shape, DType dtype) {
  const auto element_bytes = static_cast<int64_t>(DTypeSize(dtype));
  constexpr int64_t kMaxElements = (int64_t{1} << 31) - 1 - norm_device::kMaxPlaneBlockElements;
  if (!IsNarrowAndFull(shape, dtype) || shape.layout != BatchNormLayout::kNchw ||
      shape.spatial <= 1 || shape.spatial * element_bytes < kGranuleBytes ||
      shape.spatial > kMaxElements / shape.channels) {
    return std::nullopt;
  }
  PlaneInferencePlan plan;
  const int64_t image = shape.channels * shape.spatial;
  plan.part_images = kMaxElements / image;
  // Parts begin at multiples of 16 bytes where the tensor does, if a few images make one.
  if (plan.part_images > kGranuleBytes) plan.part_images -= plan.part_images % kGranuleBytes;
  plan.part_images = std::min(plan.part_images, shape.batch);
  plan.whole_planes = shape.spatial * element_bytes % kGranuleBytes == 0;
  return plan;
}

std::optional<RowInferencePlan> PlanRowInference(const BatchNormShape& shape, DType dtype,
                                                 bool aligned) {
  constexpr int64_t kMaxChannels = int64_t{1} << 22;
  const bool channel_last = shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1;
  if (!IsNarrowAndFull(shape, dtype) || !channel_last || shape.channels > kMaxChannels) {
    return std::nullopt;
  }
  RowInferencePlan plan;
  const int64_t wide_elements = kGranuleBytes / static_cast<int64_t>(DTypeSize(dtype));
  plan.wide = aligned && shape.channels % wide_elements == 0;
  const int64_t columns = plan.wide ? shape.channels / wide_elements : shape.channels;
  const bool is_f32 = dtype == DType::kF32;
  const int64_t max_columns = is_f32 ? norm_device::kRowColumns<4> : norm_device::kRowColumns<2>;
  while ((1 << plan.column_bits) < std::min(columns, max_columns)) ++plan.column_bits;
  const int granules = is_f32 ? norm_device::kRowGranules<4> : norm_device::kRowGranules<2>;
  const int64_t block_rows = int64_t{kRowThreads >> plan.column_bits} * granules;
  plan.slices = CeilDiv(columns, int64_t{1} << plan.column_bits);
  const int64_t row_blocks = CeilDiv(shape.batch * shape.spatial, block_rows);
  if (row_blocks > kMaxBlocksX / plan.slices) return std::nullopt;
  plan.launch.threads_x = kRowThreads;
  plan.launch.blocks_x = row_blocks * plan.slices;
  return plan;
}

}  // namespace norm::internal
