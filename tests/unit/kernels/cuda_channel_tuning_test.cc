// Launch configurations of BatchNorm and of quantized rows are pure functions too. No device needed.
#include <gtest/gtest.h>

#include "batch_norm/batch_norm_tuning.h"
#include "row_norm/row_norm_quantized_tuning.h"

namespace norm::internal {
namespace {

constexpr DeviceTraits kDevice = {132, 90, 227 << 10, 50 << 20};
constexpr DeviceTraits kWithoutClusters = {84, 86, 99 << 10, 6 << 20};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr int64_t kHiddenSizes[] = {
    1,    3,    31,   32,   33,   255,  256,   257,   1000,  1023,  1024,   4093,   4096,   4097,
    5000, 8191, 8192, 8193, 8200, 9000, 12289, 16384, 16392, 65536, 131072, 200003, 1 << 20};

TEST(BatchNormTuningTest, ChunksCoverEveryValueAndGridsStayLegal) {
  const BatchNormShape shapes[] = {{64, 64, 12544}, {2, 70000, 4},      {65536, 3, 4},
                                   {140000, 5, 1},  {1, 1, 1 << 30},    {128, 2048, 49},
                                   {4, 1, 64},      {1, 1 << 20, 2},    {3, 7, 100003},
                                   {300, 17, 4},    {1 << 20, 1024, 1}, {2, 3, 35}};
  for (BatchNormShape shape : shapes) {
    for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
      shape.layout = layout;
      for (DType dtype : kDTypes) {
        const BatchNormPlan plan = PlanBatchNorm(shape, dtype, kDevice);
        SCOPED_TRACE(testing::Message() << shape.batch << " " << shape.channels << " "
                                        << shape.spatial << " " << DTypeName(dtype));
        const auto& chunks = plan.chunks;
        EXPECT_GE(chunks.chunks * chunks.chunk_values, plan.shape.values);
        EXPECT_LT((chunks.chunks - 1) * chunks.chunk_values, plan.shape.values);
        for (const LaunchConfig& launch : {plan.reduction, plan.elementwise, plan.channels}) {
          EXPECT_GE(launch.blocks_x, 1);
          EXPECT_LE(launch.blocks_x, kMaxBlocksX);
          EXPECT_GE(launch.blocks_y, 1);
          EXPECT_LE(launch.blocks_y, kMaxBlocksY);
          EXPECT_LE(launch.threads_x * launch.threads_y, norm_device::kBatchThreads);
        }
      }
    }
  }
}

TEST(BatchNormTuningTest, EmptyTensorsNeedOnlyChannels) {
  const BatchNormPlan plan = PlanBatchNorm({0, 5, 49}, DType::kF32, kDevice);
  EXPECT_EQ(plan.shape.values, 0);
  EXPECT_EQ(plan.chunks.chunks, 0);
  EXPECT_EQ(plan.channels.blocks_x, 1);
}

TEST(QuantizedRowTest, HoldsRowsOfWholeAccessesAndLeavesOthers) {
  for (norm_device::RowKind kind : {norm_device::RowKind::kRms, norm_device::RowKind::kLayer}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const int bytes = static_cast<int>(DTypeSize(dtype));
      using norm_device::QuantizedRowMethod;
      const QuantizedRowMethod longest_method =
          norm_device::QuantizedMethodServes(QuantizedRowMethod::kLongBlock, kind, bytes)
              ? QuantizedRowMethod::kLongBlock
              : QuantizedRowMethod::kBlock;
      const int64_t longest = int64_t{norm_device::kMaxQuantizedBlockThreads} *
                              norm_device::QuantizedRowElements(longest_method);
      EXPECT_GE(longest, 16384);  // RowForwardHeld has no quantized output for them
      for (int64_t hidden_size : kHiddenSizes) {
        const auto plan = PlanQuantizedRow(kind, hidden_size, dtype, kDevice);
        EXPECT_EQ(plan.has_value(), hidden_size * bytes % 16 == 0 && hidden_size <= longest)
            << hidden_size;
        if (!plan.has_value()) continue;
        EXPECT_TRUE(norm_device::QuantizedMethodServes(plan->method, kind, bytes));
        const int held = norm_device::QuantizedRowElements(plan->method);
        EXPECT_GE(int64_t{plan->threads} / plan->rows_per_block * held, hidden_size);
        EXPECT_EQ(plan->threads % 32, 0);
        EXPECT_LE(plan->threads, norm_device::kMaxQuantizedBlockThreads);
        EXPECT_LE(plan->shared_bytes, 64 << 10);
      }
    }
    EXPECT_FALSE(PlanQuantizedRow(kind, 1024, DType::kF64, kDevice).has_value());
  }
}

TEST(QuantizedRowTest, SpreadsFewRowsAndLetsBlocksTakeSeveralOfMany) {
  for (norm_device::RowKind kind : {norm_device::RowKind::kRms, norm_device::RowKind::kLayer}) {
    for (int64_t hidden_size : {256, 1024, 4096}) {
      const auto plan = PlanQuantizedRow(kind, hidden_size, DType::kBF16, kDevice);
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(QuantizedRowLaunch(*plan, 1).blocks_x, 1);
      EXPECT_EQ(QuantizedRowLaunch(*plan, 101).blocks_x, 100 / plan->rows_per_block + 1);
      const int64_t blocks = QuantizedRowLaunch(*plan, 1000000).blocks_x;
      EXPECT_GE(blocks, plan->resident_blocks);
      EXPECT_LE(blocks, 1000000 / plan->rows_per_block / 2 + 1);
      EXPECT_LE(QuantizedRowLaunch(*plan, int64_t{1} << 40).blocks_x, kMaxBlocksX);
    }
  }
}

TEST(QuantizedRowTest, OlderDevicesReadRowsWithoutSharedMemory) {
  DeviceTraits older = kDevice;
  older.compute_capability = 80;
  const auto plan = PlanQuantizedRow(norm_device::RowKind::kLayer, 8192, DType::kF32, older);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->shared_bytes, 0);
}

}  // namespace
}  // namespace norm::internal
