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
    {60000, 96, 1, BatchNormLayout::kNhwc},  {150, 40000, 1, BatchNormLayout::kNhwc},
    {500, 60000, 1, BatchNormLayout::kNhwc},
};

void ExpectSound(const RowsPlan& plan, const BatchNormShape& shape, int tensors, DType dtype) {
  const norm_device::RowsGrid& grid = plan.grid;
  const int64_t rows = shape.batch * shape.spatial;
  EXPECT_EQ(grid.rows, rows);
  EXPECT_EQ(grid.channels, shape.channels);
  EXPECT_GE(int64_t{grid.sets} * grid.slice_channels, shape.channels);
  EXPECT_LT((grid.sets - 1) * grid.slice_channels, shape.channels);
  EXPECT_GE(grid.chunks * grid.chunk_rows, rows);
  EXPECT_LT((grid.chunks - 1) * grid.chunk_rows, rows);
  EXPECT_LE(grid.chunk_rows, 256);
  EXPECT_EQ(grid.strips * grid.strip_channels, grid.slice_channels);
  EXPECT_LE(grid.strip_channels, norm_device::kRowsStripChannels);
  EXPECT_GE(grid.strip_channels * static_cast<int64_t>(DTypeSize(dtype)), 128);
  EXPECT_GE(grid.groups, 1);
  EXPECT_LE(grid.groups * grid.strips, norm_device::kRowsWarps);
  EXPECT_GE(grid.set_blocks, 1);
  EXPECT_LE(grid.sets * grid.set_blocks, kH200.sm_count);
  EXPECT_LE(grid.stages, norm_device::kRowsMaxStages);
  EXPECT_GE(grid.stages, 2);
  EXPECT_LE(grid.gather, norm_device::kRowsMaxGather);
  EXPECT_GE(grid.gather * (grid.shared_totals ? grid.set_blocks : 1), grid.slice_channels);
  if (!grid.shared_totals) {
    EXPECT_EQ(grid.strips, 1);
    EXPECT_LE(tensors * (norm_device::kRowsMaxGather + grid.gather) * 16,
              norm_device::RowsAreaBytes(tensors));
  }
  EXPECT_EQ(norm_device::RowsRingOffset(tensors) % 128, 0);
  EXPECT_EQ(plan.launch.dynamic_shared_bytes,
            norm_device::RowsRingOffset(tensors) +
                int64_t{grid.stages} * norm_device::kRowsWarps *
                    norm_device::RowsChunkBytes(tensors, static_cast<int>(DTypeSize(dtype))));
  EXPECT_LE(plan.launch.dynamic_shared_bytes, kH200.max_shared_bytes);
  EXPECT_EQ(plan.launch.blocks_x, grid.sets * grid.set_blocks);
  EXPECT_TRUE(plan.launch.cooperative);
}

TEST(BatchNormRowsPlanTest, EveryPlanIsSound) {
  for (const BatchNormShape& shape : kShapes) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << shape.channels << " " << DTypeName(dtype));
      const std::optional<RowsPlan> forward = PlanRowsForward(shape, dtype, kH200);
      const std::optional<RowsPlan> backward = PlanRowsBackward(shape, dtype, kH200);
      ASSERT_TRUE(forward.has_value());
      ASSERT_TRUE(backward.has_value());
      ExpectSound(*forward, shape, 1, dtype);
      ExpectSound(*backward, shape, 2, dtype);
    }
  }
}

TEST(BatchNormRowsPlanTest, SlicesFillTheDevice) {
  const auto slices = [](int64_t rows, int64_t channels, DType dtype) {
    return PlanRowsForward({rows, channels, 1, BatchNormLayout::kNhwc}, dtype, kH200)->grid;
  };
  EXPECT_EQ(slices(25088, 512, DType::kF32).sets, 8);
  EXPECT_EQ(slices(25088, 512, DType::kBF16).sets, 8);
  EXPECT_EQ(slices(200704, 512, DType::kBF16).sets, 4);
  EXPECT_EQ(slices(6272, 2048, DType::kF32).sets, 16);
  EXPECT_EQ(slices(800000, 64, DType::kF32).sets, 1);
  EXPECT_EQ(slices(60000, 96, DType::kF32).sets, 1);  // not a half empty second set
  EXPECT_EQ(slices(500, 60000, DType::kF32).sets, 30);
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
  shape = {500, 160000, 1, BatchNormLayout::kNhwc};
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
