// Backward launch configurations are pure functions of hidden size, dtype and device. No device
// needed.
#include <gtest/gtest.h>

#include "row_norm/row_norm_backward_tuning.h"

namespace norm::internal {
namespace {

using norm_device::RowBackwardMethod;

constexpr DeviceTraits kDevice = {132};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr int64_t kHiddenSizes[] = {
    1,    3,    31,   32,   33,   255,  256,   257,   1000,  1023,  1024,   4093,   4096,   4097,
    5000, 8191, 8192, 8193, 8200, 9000, 12289, 16384, 16392, 65536, 131072, 200003, 1 << 20};

/// Elements of a row that the plan's threads hold in registers.
int64_t HeldElements(const RowBackwardPlan& plan, DType dtype) {
  const int threads = plan.threads / plan.rows_per_block;
  switch (plan.method) {
    case RowBackwardMethod::kWarpRegisters:
    case RowBackwardMethod::kBlockNarrow:
      return int64_t{threads} * norm_device::kBackwardNarrowElements;
    case RowBackwardMethod::kBlockMedium:
      return int64_t{threads} * norm_device::kBackwardMediumElements;
    case RowBackwardMethod::kBlockWide:
      return int64_t{threads} * norm_device::BackwardWideElements(dtype == DType::kF64, plan.wide);
    case RowBackwardMethod::kBlockStreaming:
      return INT64_MAX;
  }
  return 0;
}

TEST(RowBackwardTuningTest, EveryRowFitsItsThreads) {
  for (DType dtype : kDTypes) {
    for (int64_t hidden_size : kHiddenSizes) {
      const RowBackwardPlan plan = PlanRowBackward(hidden_size, dtype, kDevice);
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << hidden_size);
      EXPECT_GE(HeldElements(plan, dtype), hidden_size);
      EXPECT_EQ(plan.threads % 32, 0);
      EXPECT_LE(plan.threads, norm_device::kBackwardMaxThreads);
      EXPECT_GE(plan.max_blocks, kDevice.sm_count);
      EXPECT_EQ(plan.wide, hidden_size * DTypeSize(dtype) % 16 == 0);
    }
  }
}

TEST(RowBackwardTuningTest, ColumnStripsCoverEveryRow) {
  for (int64_t rows : {int64_t{1}, int64_t{63}, int64_t{65}, int64_t{70000}, int64_t{1} << 33}) {
    for (int64_t hidden_size : {int64_t{8193}, int64_t{65536}, int64_t{1} << 20}) {
      const ColumnPlan plan = PlanColumns(rows, hidden_size, DType::kF32, kDevice);
      EXPECT_GE(plan.launch.blocks_y * plan.rows_per_strip, rows);
      EXPECT_LT((plan.launch.blocks_y - 1) * plan.rows_per_strip, rows);
      EXPECT_LE(plan.launch.blocks_y, kMaxBlocksY);
    }
  }
}

}  // namespace
}  // namespace norm::internal
