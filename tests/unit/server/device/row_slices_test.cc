#include "server/device/row_slices.h"

#include <gtest/gtest.h>

#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

TEST(RowSlicesTest, CutsRowsEvenlyUpToTheLast) {
  // 100 rows of 32 bytes in and out, and the weight.
  const NormProblem problem = test::RmsNormProblem(100, 4);
  const RowSlices slices = PlanRowSlices(problem, 1000, 32);
  EXPECT_EQ(slices.count, 3);
  EXPECT_EQ(slices.units_per_slice, 34);
  EXPECT_EQ(SliceOf(problem, slices, 0).rows, 34);
  EXPECT_EQ(SliceOf(problem, slices, 2).rows, 32);
  EXPECT_EQ(SliceOffset(problem, slices, 2, Role::kX), 68 * 4 * 4);
}

TEST(RowSlicesTest, StatisticsHaveOffsetsOfTheirOwn) {
  NormProblem problem = test::LayerNormProblem(10, 4);
  problem.dtype = DType::kBF16;
  problem.outputs.Add(Role::kMean);
  const RowSlices slices = PlanRowSlices(problem, 1, 5);
  EXPECT_EQ(slices.count, 5);
  EXPECT_EQ(SliceOffset(problem, slices, 3, Role::kY), 6 * 4 * 2);
  EXPECT_EQ(SliceOffset(problem, slices, 3, Role::kMean), 6 * 4);
}

TEST(RowSlicesTest, NeverMoreThanTheLimitOrTheRows) {
  EXPECT_EQ(PlanRowSlices(test::RmsNormProblem(1000, 4), 1, 32).count, 32);
  EXPECT_EQ(PlanRowSlices(test::RmsNormProblem(3, 4), 1, 32).count, 3);
  EXPECT_EQ(PlanRowSlices(test::RmsNormProblem(3, 4), 1 << 20, 32).count, 1);
  EXPECT_EQ(PlanRowSlices(test::RmsNormProblem(0, 4), 1, 32).count, 1);
}

TEST(RowSlicesTest, BatchNormCutsImagesWhereChannelsAreNotLast) {
  const NormProblem planes = test::BatchNormInferenceProblem({7, 3, 5});
  const RowSlices slices = PlanRowSlices(planes, ProblemBytes(planes) / 4, 32);
  EXPECT_EQ(slices.units, 7);
  EXPECT_EQ(slices.units_per_slice, 2);
  EXPECT_EQ(slices.count, 4);
  const NormProblem last = SliceOf(planes, slices, 3);
  EXPECT_EQ(last.batch_norm_shape.batch, 1);
  EXPECT_EQ(last.rows, 5);
  EXPECT_EQ(SliceOffset(planes, slices, 3, Role::kX), 6 * 3 * 5 * 4);
}

TEST(RowSlicesTest, BatchNormCutsPositionsWhereChannelsAreLast) {
  NormProblem rows = test::BatchNormInferenceProblem({2, 3, 5, BatchNormLayout::kNhwc});
  rows.batch_norm_shape = LaunchShape(rows);
  const RowSlices slices = PlanRowSlices(rows, 1, 3);
  EXPECT_EQ(slices.units, 10);
  EXPECT_EQ(slices.count, 3);
  const NormProblem last = SliceOf(rows, slices, 2);
  EXPECT_EQ(last.rows, 2);
  EXPECT_EQ(last.batch_norm_shape.batch, 2);
  EXPECT_EQ(last.batch_norm_shape.spatial, 1);
}

}  // namespace
}  // namespace norm::server
