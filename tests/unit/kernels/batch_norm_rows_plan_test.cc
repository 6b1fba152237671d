// The plan of channel-last BatchNorm: what it covers, and that it fits the device.
#include <gtest/gtest.h>

#include "batch_norm/batch_norm_rows_plan.h"

namespace norm::internal {
namespace {

constexpr DeviceTraits kH200 = {
    .sm_count = 132, .compute_capability = 90, .max_shared_bytes = 232448, .l2_bytes = 60 << 20};
constexpr BatchNormShape kShapes[] = {
    {64, 64, 12544, BatchNormLayout::kNhwc}, {32, 256, 3136, BatchNormLayout::kNhwc},
    {128, 512, 196, BatchNormLayout::kNhwc}, {128, 2048, 49, BatchNormLayout::kNhwc},
    {32, 64, 50176, BatchNormLayout::kNhwc}, {256, 512, 784, BatchNormLayout::kNhwc},
    {8192, 1024, 1, BatchNormLayout::kNchw}, {32768, 64, 1, BatchNormLayout::kNchw},
    {90, 520, 50, BatchNormLayout::kNhwc},   {5, 36, 3500, BatchNormLayout::kNhwc},
};

void ExpectSound(const RowsPlan& plan, const BatchNormShape& shape, int tensors, DType dtype) {
  const norm_device::RowsGrid& grid = plan.grid;
  const int64_t rows = shape.batch * shape.spatial;
  EXPECT_EQ(grid.rows, rows);
  EXPECT_EQ(grid.channels, shape.channels);
  EXPECT_GE(int64_t{grid.items} * grid.slice_channels, shape.channels);
  EXPECT_LT((grid.items - 1) * grid.slice_channels, shape.channels);
  EXPECT_GE(grid.chunks * grid.chunk_rows, rows);
  EXPECT_LT((grid.chunks - 1) * grid.chunk_rows, rows);
  EXPECT_LE(grid.chunk_rows, 256);
  EXPECT_LE(grid.slice_channels, norm_device::kRowsMaxSliceChannels);
  EXPECT_GE(grid.slice_channels * static_cast<int64_t>(DTypeSize(dtype)), 128);
  EXPECT_LE(grid.stages, norm_device::kRowsMaxStages);
  EXPECT_LE(grid.kept, grid.stages);
  EXPECT_LT(grid.flight, grid.stages);
  EXPECT_EQ(grid.ring_offset % 128, 0);
  EXPECT_GE(grid.ring_offset, norm_device::RowsFixedBytes(grid.slice_channels));
  EXPECT_EQ(plan.launch.dynamic_shared_bytes,
            grid.ring_offset +
                int64_t{grid.stages} * tensors *
                    norm_device::RowsChunkBytes(tensors, static_cast<int>(DTypeSize(dtype))));
  EXPECT_LE(plan.launch.dynamic_shared_bytes, kH200.max_shared_bytes);
  EXPECT_LE(plan.launch.blocks_x, grid.chunks);  // none without rows
  EXPECT_EQ(plan.launch.blocks_x, kH200.sm_count);
  EXPECT_TRUE(plan.launch.cooperative);
}

TEST(BatchNormRowsPlanTest, EveryPlanIsSound) {
  for (const BatchNormShape& shape : kShapes) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << shape.channels << " " << DTypeName(dtype));
      const std::optional<RowsPlan> forward = PlanRowsForward(shape, dtype, kH200);
      const std::optional<RowsPlan> backward = PlanRowsBackward(shape, dtype, kH200);
      if (shape.channels != 36 || dtype == DType::kF32) {
        ASSERT_TRUE(forward.has_value());
        ASSERT_TRUE(backward.has_value());
      }
      if (forward.has_value()) ExpectSound(*forward, shape, 1, dtype);
      if (backward.has_value()) ExpectSound(*backward, shape, 2, dtype);
    }
  }
}

TEST(BatchNormRowsPlanTest, OtherTensorsAreLeftToOtherKernels) {
  const BatchNormShape good = {64, 64, 12544, BatchNormLayout::kNhwc};
  ASSERT_TRUE(PlanRowsForward(good, DType::kF32, kH200).has_value());
  EXPECT_FALSE(PlanRowsForward(good, DType::kF64, kH200).has_value());
  BatchNormShape shape = good;
  shape.layout = BatchNormLayout::kNchw;
  EXPECT_FALSE(PlanRowsForward(shape, DType::kF32, kH200).has_value());
  shape = good;
  shape.channels = 66;
  EXPECT_FALSE(PlanRowsForward(shape, DType::kF32, kH200).has_value());
  shape = good;
  shape.batch = 0;
  EXPECT_FALSE(PlanRowsForward(shape, DType::kF32, kH200).has_value());
  DeviceTraits before_hopper = kH200;
  before_hopper.compute_capability = 80;
  EXPECT_FALSE(PlanRowsForward(good, DType::kF32, before_hopper).has_value());
  EXPECT_FALSE(
      PlanRowsForward({100, 64, 1, BatchNormLayout::kNhwc}, DType::kF32, kH200).has_value());
}

}  // namespace
}  // namespace norm::internal
