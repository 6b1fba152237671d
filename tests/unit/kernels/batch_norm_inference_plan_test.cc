// How BatchNorm inference divides a tensor: every value once, in positions of 32 bits.
#include <gtest/gtest.h>

#include "batch_norm/batch_norm_inference_plan.h"

namespace norm::internal {
namespace {

using norm_device::Divisor;
using norm_device::MakeDivisor;

uint32_t Quotient(uint32_t value, Divisor divisor) {
  return static_cast<uint32_t>(uint64_t{value} * divisor.factor >> 32) >> divisor.shift;
}

TEST(BatchNormInferencePlanTest, DivisorsDivideWithoutRemainderOfError) {
  constexpr uint32_t kEnd = uint32_t{1} << 31;
  for (uint32_t divisor : {2u, 3u, 4u, 7u, 49u, 196u, 12544u, 65535u, 65536u, 65537u, 100352u,
                           802816u, (1u << 30) - 1, 1u << 30, (1u << 30) + 1, kEnd - 1}) {
    SCOPED_TRACE(divisor);
    const Divisor by = MakeDivisor(divisor);
    for (uint64_t multiple = 0; multiple < kEnd; multiple += uint64_t{divisor} * 997) {
      for (int64_t offset : {-1, 0, 1}) {
        const int64_t value = static_cast<int64_t>(multiple) + offset;
        if (value < 0 || value >= kEnd) continue;
        ASSERT_EQ(Quotient(static_cast<uint32_t>(value), by), value / divisor) << value;
      }
    }
    EXPECT_EQ(Quotient(kEnd - 1, by), (kEnd - 1) / divisor);
  }
}

TEST(BatchNormInferencePlanTest, PartsOfPlanesCoverTheTensor) {
  constexpr int64_t kEnd = (int64_t{1} << 31) - norm_device::kMaxPlaneBlockElements;
  for (const BatchNormShape& shape :
       {BatchNormShape{1, 1, 8}, BatchNormShape{64, 64, 12544}, BatchNormShape{128, 2048, 49},
        BatchNormShape{3000, 1, 1 << 20}, BatchNormShape{5, 3, 300000001},
        BatchNormShape{1 << 20, 4096, 4}}) {
    SCOPED_TRACE(::testing::Message()
                 << shape.batch << "x" << shape.channels << "x" << shape.spatial);
    const std::optional<PlaneInferencePlan> plan = PlanPlaneInference(shape, DType::kF32);
    ASSERT_TRUE(plan.has_value());
    const int64_t image = shape.channels * shape.spatial;
    EXPECT_GE(plan->part_images, 1);
    EXPECT_LE(plan->part_images, shape.batch);
    EXPECT_LT(plan->part_images * image, kEnd);
    if (plan->part_images < shape.batch && plan->part_images >= 16) {
      EXPECT_EQ(plan->part_images % 16, 0);
    }
    EXPECT_EQ(plan->whole_planes, shape.spatial % 4 == 0);
  }
  EXPECT_EQ(PlaneInferenceBlocks(1, DType::kBF16), 1);
  EXPECT_EQ(PlaneInferenceBlocks(norm_device::kPlaneBlockGranules * 8, DType::kBF16), 1);
  EXPECT_EQ(PlaneInferenceBlocks(norm_device::kPlaneBlockGranules * 8 + 1, DType::kBF16), 2);
}

TEST(BatchNormInferencePlanTest, SmallPlanesOfWholeGranulesGoByImages) {
  const auto blocks = [](const BatchNormShape& shape, DType dtype) {
    return PlanPlaneInference(shape, dtype)->image_blocks;
  };
  EXPECT_EQ(blocks({128, 2048, 49}, DType::kBF16), 196);
  EXPECT_EQ(blocks({128, 512, 196}, DType::kF32), 392);
  EXPECT_EQ(blocks({8, 8, 9}, DType::kF16), 1);
  EXPECT_EQ(blocks({7, 8, 9}, DType::kF16), 0);  // few images
  EXPECT_EQ(blocks({8, 7, 9}, DType::kF16), 0);  // no whole granules
  EXPECT_EQ(blocks({64, 64, 12544}, DType::kF32), 0);
}

TEST(BatchNormInferencePlanTest, OtherPlanesAreLeftToOtherKernels) {
  EXPECT_FALSE(PlanPlaneInference({2, 3, 100}, DType::kF64).has_value());
  EXPECT_FALSE(PlanPlaneInference({0, 3, 100}, DType::kF32).has_value());
  EXPECT_FALSE(PlanPlaneInference({2, 3, 1}, DType::kF32).has_value());
  EXPECT_FALSE(PlanPlaneInference({2, 3, 7}, DType::kBF16).has_value());
  EXPECT_TRUE(PlanPlaneInference({2, 3, 8}, DType::kBF16).has_value());
  EXPECT_FALSE(PlanPlaneInference({2, 3, 1 << 30}, DType::kBF16).has_value());
  EXPECT_FALSE(PlanPlaneInference({2, 3, 100, BatchNormLayout::kNhwc}, DType::kF32).has_value());
}

TEST(BatchNormInferencePlanTest, RowsAreCovered) {
  for (int64_t channels : {1, 3, 4, 8, 24, 64, 136, 2048, 100000}) {
    for (bool aligned : {true, false}) {
      SCOPED_TRACE(::testing::Message() << channels << (aligned ? " aligned" : ""));
      const BatchNormShape shape = {1000, channels, 3, BatchNormLayout::kNhwc};
      const std::optional<RowInferencePlan> plan = PlanRowInference(shape, DType::kBF16, aligned);
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(plan->wide, aligned && channels % 8 == 0);
      const int64_t columns = int64_t{1} << plan->column_bits;
      EXPECT_LE(columns, norm_device::kRowColumns<2>);
      EXPECT_GE(plan->slices * columns * (plan->wide ? 8 : 1), channels);
      const int64_t rows =
          plan->launch.blocks_x / plan->slices * (norm_device::kRowThreads / columns) *
          (plan->tall ? norm_device::kTallRowGranules : norm_device::kRowGranules<2>);
      EXPECT_EQ(plan->launch.blocks_x % plan->slices, 0);
      EXPECT_GE(rows, 3000);
    }
  }
}

TEST(BatchNormInferencePlanTest, RowsOfTwoByteElementsAreTallWhereTheySaveARound) {
  const auto tall = [](int64_t rows, int64_t channels, DType dtype, bool aligned) {
    return PlanRowInference({rows, channels, 1}, dtype, aligned)->tall;
  };
  EXPECT_TRUE(tall(8192, 1024, DType::kBF16, true));
  EXPECT_FALSE(tall(8192, 1024, DType::kBF16, false));
  EXPECT_FALSE(tall(8192, 1024, DType::kF32, true));
  EXPECT_FALSE(tall(4096, 1024, DType::kBF16, true));
  EXPECT_FALSE(tall(25088, 512, DType::kBF16, true));
}

TEST(BatchNormInferencePlanTest, RowsAreChannelLastOrWithoutSpatialExtent) {
  EXPECT_TRUE(PlanRowInference({5, 66, 1}, DType::kF32, true).has_value());
  EXPECT_FALSE(PlanRowInference({5, 66, 2}, DType::kF32, true).has_value());
  EXPECT_FALSE(PlanRowInference({5, 66, 1}, DType::kF64, true).has_value());
  EXPECT_FALSE(PlanRowInference({0, 66, 2, BatchNormLayout::kNhwc}, DType::kF32, true).has_value());
}

}  // namespace
}  // namespace norm::internal
