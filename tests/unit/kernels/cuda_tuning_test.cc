// Launch configurations are pure functions of hidden size, dtype and device. No device needed.
#include <gtest/gtest.h>

#include "batch_norm/batch_norm_tuning.h"
#include "row_norm/row_norm_tuning.h"

namespace norm::internal {
namespace {

using norm_device::RowMethod;

constexpr DeviceTraits kDevice = {132};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr int64_t kHiddenSizes[] = {
    1,    3,    31,   32,   33,   255,  256,   257,   1000,  1023,  1024,   4093,   4096,   4097,
    5000, 8191, 8192, 8193, 8200, 9000, 12289, 16384, 16392, 65536, 131072, 200003, 1 << 20};

/// Elements of a row that the plan's threads hold in registers.
int64_t HeldElements(const RowNormPlan& plan, DType dtype) {
  const int threads = plan.threads / plan.rows_per_block;
  switch (plan.method) {
    case RowMethod::kWarpRegisters:
    case RowMethod::kBlockNarrow:
      return int64_t{threads} * norm_device::kNarrowRowElements;
    case RowMethod::kWarpWide:
    case RowMethod::kBlockWide:
      return int64_t{threads} * norm_device::WideRowElements(dtype == DType::kF64, plan.wide);
    case RowMethod::kBlockStreaming:
      return INT64_MAX;
  }
  return 0;
}

TEST(RowNormTuningTest, EveryRowFitsItsThreads) {
  for (DType dtype : kDTypes) {
    for (int64_t hidden_size : kHiddenSizes) {
      const RowNormPlan plan = PlanRowForward(hidden_size, dtype, kDevice);
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << hidden_size);
      EXPECT_GE(HeldElements(plan, dtype), hidden_size);
      EXPECT_EQ(plan.threads % 32, 0);
      EXPECT_LE(plan.threads, norm_device::kMaxBlockRowThreads);
      EXPECT_GE(plan.max_blocks, kDevice.sm_count);
      EXPECT_EQ(plan.wide, hidden_size * DTypeSize(dtype) % 16 == 0);
    }
  }
}

TEST(RowNormTuningTest, MethodsChangeAtTheDocumentedSizes) {
  const auto method = [](int64_t hidden_size, DType dtype) {
    return PlanRowForward(hidden_size, dtype, kDevice).method;
  };
  EXPECT_EQ(method(256, DType::kF32), RowMethod::kWarpRegisters);
  EXPECT_EQ(method(257, DType::kF32), RowMethod::kWarpWide);
  EXPECT_EQ(method(1024, DType::kF32), RowMethod::kWarpWide);
  EXPECT_EQ(method(1028, DType::kF32), RowMethod::kBlockNarrow);
  EXPECT_EQ(method(1023, DType::kF32), RowMethod::kBlockNarrow);
  EXPECT_EQ(method(4096, DType::kF32), RowMethod::kBlockNarrow);
  EXPECT_EQ(method(4096, DType::kBF16), RowMethod::kBlockWide);
  EXPECT_EQ(method(16384, DType::kF32), RowMethod::kBlockWide);
  EXPECT_EQ(method(16388, DType::kF32), RowMethod::kBlockStreaming);
  EXPECT_EQ(method(8191, DType::kF32), RowMethod::kBlockWide);
  EXPECT_EQ(method(8193, DType::kF32), RowMethod::kBlockStreaming);
  EXPECT_EQ(method(8192, DType::kF64), RowMethod::kBlockWide);
  EXPECT_EQ(method(8194, DType::kF64), RowMethod::kBlockStreaming);
}

TEST(RowNormTuningTest, RowsDecideOnlyHowManyBlocksAreLaunched) {
  for (int64_t hidden_size : kHiddenSizes) {
    const RowNormPlan plan = PlanRowForward(hidden_size, DType::kF32, kDevice);
    EXPECT_EQ(plan, PlanRowForward(hidden_size, DType::kF32, kDevice));
    const LaunchConfig one = RowLaunch(plan, 1);
    const LaunchConfig many = RowLaunch(plan, int64_t{1} << 40);
    EXPECT_EQ(one.blocks_x, 1);
    EXPECT_EQ(many.blocks_x, plan.max_blocks);
    EXPECT_EQ(one.threads_x, many.threads_x);
    EXPECT_EQ(one.threads_y, many.threads_y);
  }
}

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

}  // namespace
}  // namespace norm::internal
