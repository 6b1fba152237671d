// How resident BatchNorm kernels divide a tensor: every value once, nothing over the device's limits.
#include <gtest/gtest.h>

#include "batch_norm/batch_norm_ring_plan.h"

namespace norm::internal {
namespace {

constexpr DeviceTraits kH200 = {132, 90, 232448, 50 << 20};
constexpr DeviceTraits kSmallCard = {30, 86, 101376, 4 << 20};
constexpr DType kNarrowDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr BatchNormShape kShapes[] = {
    {64, 64, 12544}, {32, 256, 3136}, {128, 512, 196}, {128, 2048, 49}, {32, 64, 50176},
    {256, 512, 784}, {3, 1, 40000},   {2, 3, 8},       {5, 7, 16},      {1, 1, 64},
    {1, 2, 70000},   {129, 1028, 4},  {6, 270, 8},     {1, 70000, 16},  {700, 16, 24},
};

void ExpectSound(const RingPlan& plan, norm_device::RingTraits traits, const BatchNormShape& shape,
                 const DeviceTraits& device) {
  const norm_device::RingShape& ring = plan.shape;
  EXPECT_GE(int64_t{ring.items} * ring.item_channels, shape.channels);
  EXPECT_LT((int64_t{ring.items} - 1) * ring.item_channels, shape.channels);
  const int64_t parts = plan.folded ? shape.batch : shape.batch * ring.run;
  EXPECT_GE(int64_t{ring.slice} * ring.group_blocks, parts);
  const int64_t step = plan.folded ? int64_t{traits.threads} / ring.run * traits.unroll
                                   : int64_t{traits.threads} * traits.unroll;
  EXPECT_GE(step, 1);
  EXPECT_GE(ring.steps * step, ring.slice);
  EXPECT_LT((ring.steps - 1) * step, ring.slice);
  // A slice stays until its sums are known.
  EXPECT_GE(ring.ring_steps, traits.in_flight + ring.steps);
  EXPECT_GE(ring.groups, 1);
  EXPECT_LE(int64_t{ring.groups} * ring.group_blocks, device.sm_count);
  EXPECT_EQ(plan.launch.blocks_x, int64_t{ring.groups} * ring.group_blocks);
  EXPECT_LT(plan.launch.dynamic_shared_bytes, device.max_shared_bytes);
  // Groups of the kernel for small planes are clusters.
  EXPECT_EQ(plan.launch.cooperative, !plan.folded && ring.group_blocks > 1);
  EXPECT_EQ(plan.launch.cluster_blocks, plan.folded ? ring.group_blocks : 1);
  EXPECT_TRUE(plan.launch.cluster_blocks == 1 || device.HasClusters());
  EXPECT_EQ(plan.launch.blocks_x % plan.launch.cluster_blocks, 0);
  EXPECT_LE(ring.item_channels, norm_device::kMaxFoldedChannels);
  // Buffers of the items whose sums are taken before the first of them is stored.
  const int64_t buffers = plan.folded ? norm_device::kFoldedRingBuffers : norm_device::kRingBuffers;
  EXPECT_LT(ring.ring_steps - traits.in_flight, buffers * ring.steps);
}

TEST(BatchNormRingPlanTest, DivisionsCoverTheTensorWithinTheDevice) {
  for (const DeviceTraits& device : {kH200, kSmallCard}) {
    for (const BatchNormShape& shape : kShapes) {
      for (DType dtype : kNarrowDTypes) {
        SCOPED_TRACE(::testing::Message()
                     << shape.batch << " " << shape.channels << " " << shape.spatial << " "
                     << DTypeName(dtype) << " sm_" << device.compute_capability);
        if (const std::optional<RingPlan> plan = PlanForwardRing(shape, dtype, device)) {
          ExpectSound(*plan,
                      plan->folded ? norm_device::kFoldedForwardRing : norm_device::kForwardRing,
                      shape, device);
        }
        if (const std::optional<RingPlan> plan = PlanBackwardRing(shape, dtype, device)) {
          ExpectSound(*plan,
                      plan->folded ? norm_device::kFoldedBackwardRing : norm_device::kBackwardRing,
                      shape, device);
        }
      }
    }
  }
}

TEST(BatchNormRingPlanTest, TheSuiteOfTheH200StaysOnTheChip) {
  for (size_t i = 0; i < 6; ++i) {
    for (DType dtype : kNarrowDTypes) {
      EXPECT_TRUE(PlanForwardRing(kShapes[i], dtype, kH200).has_value()) << i;
      EXPECT_TRUE(PlanBackwardRing(kShapes[i], dtype, kH200).has_value()) << i;
    }
  }
}

TEST(BatchNormRingPlanTest, WhatItCannotTakeIsLeftToSeveralPasses) {
  const BatchNormShape shape = {64, 64, 12544};
  EXPECT_FALSE(PlanForwardRing(shape, DType::kF64, kH200).has_value());
  DeviceTraits turing = kH200;
  turing.compute_capability = 75;
  EXPECT_FALSE(PlanForwardRing(shape, DType::kF32, turing).has_value());
  EXPECT_FALSE(
      PlanForwardRing({64, 64, 12544, BatchNormLayout::kNhwc}, DType::kF32, kH200).has_value());
  EXPECT_FALSE(PlanForwardRing({64, 64, 1}, DType::kF32, kH200).has_value());
  EXPECT_FALSE(PlanForwardRing({0, 64, 49}, DType::kF32, kH200).has_value());
  // Images that do not start at multiples of 16 bytes; planes below one access.
  EXPECT_FALSE(PlanForwardRing({64, 63, 49}, DType::kF32, kH200).has_value());
  EXPECT_FALSE(PlanForwardRing({64, 64, 3}, DType::kF32, kH200).has_value());
  // A channel larger than the chip.
  EXPECT_FALSE(PlanForwardRing({1024, 2, 65536}, DType::kF32, kH200).has_value());
  EXPECT_FALSE(PlanBackwardRing({1 << 20, 4096, 64}, DType::kBF16, kH200).has_value());
}

TEST(BatchNormRingPlanTest, SmallPlanesAreTakenSideBySide) {
  const std::optional<RingPlan> plan = PlanForwardRing({128, 2048, 49}, DType::kBF16, kH200);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->folded);
  EXPECT_EQ(plan->shape.item_channels, 8u);
  EXPECT_EQ(plan->shape.run, 49u);
  EXPECT_EQ(plan->shape.items, 256u);
}

TEST(BatchNormRingPlanTest, GroupsOfSmallPlanesAreClustersThatFit) {
  for (int64_t batch : {1, 100, 300, 600, 1000}) {
    SCOPED_TRACE(batch);
    const std::optional<RingPlan> plan = PlanBackwardRing({batch, 2048, 49}, DType::kBF16, kH200);
    ASSERT_TRUE(plan.has_value());
    const int blocks = plan->shape.group_blocks;
    EXPECT_EQ(blocks & (blocks - 1), 0);
    EXPECT_LE(blocks, 16);
    EXPECT_EQ(plan->published_words, 0);
  }
  // Without clusters a block is alone.
  const std::optional<RingPlan> plan = PlanBackwardRing({8, 64, 49}, DType::kBF16, kSmallCard);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->shape.group_blocks, 1);
  EXPECT_FALSE(PlanBackwardRing({1000, 64, 49}, DType::kBF16, kSmallCard).has_value());
}

}  // namespace
}  // namespace norm::internal
