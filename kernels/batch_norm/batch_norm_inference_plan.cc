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
  constexpr int64_t kMaxImagePlaneBytes = 1024;
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
  // Of large planes blocks meet few, so that their numbers cost little.
  const int64_t images =
      element_bytes == 4 ? norm_device::kImagesOfBlock<4> : norm_device::kImagesOfBlock<2>;
  if (shape.spatial * element_bytes < kMaxImagePlaneBytes &&
      image * element_bytes % kGranuleBytes == 0 && shape.batch >= images) {
    plan.image_blocks = CeilDiv(image * element_bytes, norm_device::kImageThreads * kGranuleBytes);
    plan.images_of_block = images;
  }
  return plan;
}

std::optional<RowInferencePlan> PlanRowInference(const BatchNormShape& shape, DType dtype,
                                                 bool aligned) {
  constexpr int64_t kMaxChannels = int64_t{1} << 22;
  constexpr int64_t kLargeSmCount = 132;
  constexpr int64_t kOneRoundBlocks =
      kLargeSmCount * norm_device::RowBlocksPerSm(norm_device::kRowGranules<2>);
  constexpr int64_t kOneRoundTallBlocks =
      kLargeSmCount * norm_device::RowBlocksPerSm(norm_device::kTallRowGranules);
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
  int64_t block_rows = int64_t{kRowThreads >> plan.column_bits} * granules;
  plan.slices = CeilDiv(columns, int64_t{1} << plan.column_bits);
  int64_t row_blocks = CeilDiv(shape.batch * shape.spatial, block_rows);
  // Between one and two rounds of a large device's processors, tall blocks save the second.
  plan.tall = plan.wide && !is_f32 && row_blocks * plan.slices > kOneRoundBlocks &&
              row_blocks * plan.slices <= 2 * kOneRoundTallBlocks;
  if (plan.tall) {
    block_rows = block_rows / granules * norm_device::kTallRowGranules;
    row_blocks = CeilDiv(shape.batch * shape.spatial, block_rows);
  }
  if (row_blocks > kMaxBlocksX / plan.slices) return std::nullopt;
  plan.launch.threads_x = kRowThreads;
  plan.launch.blocks_x = row_blocks * plan.slices;
  return plan;
}

}  // namespace norm::internal
