#include "server/scheduler/row_split.h"

#include <gtest/gtest.h>

#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

NormProblem BatchNorm(BatchNormShape shape, BatchNormMode mode) {
  NormProblem problem = test::BatchNormInferenceProblem(shape);
  problem.batch_norm_mode = mode;
  return problem;
}

void ExpectSplit(const NormProblem& problem, int64_t rows, int64_t row_elements,
                 int64_t unit_rows) {
  const RowSplit split = SplitRows(problem);
  EXPECT_EQ(split.rows, rows);
  EXPECT_EQ(split.row_elements, row_elements);
  EXPECT_EQ(split.unit_rows, unit_rows);
}

TEST(RowSplitTest, RowsAreContiguousRunsOfX) {
  ExpectSplit(test::RmsNormProblem(6, 5), 6, 5, 1);
  ExpectSplit(test::RmsNormProblem(0, 5), 0, 5, 1);
  ExpectSplit(test::BatchNormInferenceProblem({2, 3, 7, BatchNormLayout::kNhwc}), 14, 3, 1);
  ExpectSplit(test::BatchNormInferenceProblem({2, 3, 1, BatchNormLayout::kNchw}), 2, 3, 1);
  // A plane is a row, an image the least that a launch takes.
  ExpectSplit(test::BatchNormInferenceProblem({2, 3, 7, BatchNormLayout::kNchw}), 6, 7, 3);
  ExpectSplit(test::BatchNormInferenceProblem({2, 3, 0, BatchNormLayout::kNchw}), 0, 0, 3);
  ExpectSplit(test::BatchNormInferenceProblem({0, 3, 7, BatchNormLayout::kNchw}), 0, 7, 3);
}

TEST(RowSplitTest, RowsDependOnEachOtherThroughStatisticsAndGradientsOfParameters) {
  EXPECT_TRUE(RowsAreIndependent(test::RmsNormProblem(6, 5)));
  EXPECT_TRUE(RowsAreIndependent(BatchNorm({2, 3, 7}, BatchNormMode::kInference)));
  EXPECT_FALSE(RowsAreIndependent(BatchNorm({2, 3, 7}, BatchNormMode::kTraining)));
  for (const Role role : {Role::kDweight, Role::kDbias}) {
    NormProblem problem = test::RmsNormProblem(6, 5);
    problem.direction = Direction::kBackward;
    EXPECT_TRUE(RowsAreIndependent(problem));
    problem.outputs.Add(role);
    EXPECT_FALSE(RowsAreIndependent(problem));
  }
}

TEST(RowSplitTest, StatisticsTravelInRowsWhereEachRowHasOne) {
  for (const Role role : {Role::kMean, Role::kRstd}) {
    EXPECT_TRUE(TravelsInRows(Op::kLayerNorm, role));
    EXPECT_FALSE(TravelsInRows(Op::kBatchNorm, role));
  }
  NormProblem problem = test::RmsNormProblem(6, 5);
  problem.dtype = DType::kBF16;
  EXPECT_EQ(RowBytes(problem, Role::kX), 10);
  EXPECT_EQ(RowBytes(problem, Role::kRstd), 4);
  problem.dtype = DType::kF64;
  EXPECT_EQ(RowBytes(problem, Role::kY), 40);
  EXPECT_EQ(RowBytes(problem, Role::kRstd), 8);
}

TEST(RowSplitTest, PartsAddUpToTheWhole) {
  const NormProblem whole = test::BatchNormInferenceProblem({4, 3, 7, BatchNormLayout::kNchw});
  const NormProblem part = RowsOf(whole, 9, false);
  EXPECT_EQ(part.batch_norm_shape.batch, 3);
  EXPECT_EQ(part.rows, 21);
  EXPECT_EQ(TensorElements(part, Role::kX), 63);
  const NormProblem positions =
      RowsOf(test::BatchNormInferenceProblem({4, 3, 7, BatchNormLayout::kNhwc}), 5, false);
  EXPECT_EQ(positions.rows, 5);
  EXPECT_EQ(TensorElements(positions, Role::kX), 15);
  EXPECT_EQ(RowsOf(test::RmsNormProblem(6, 5), 2, false).rows, 2);
}

TEST(RowSplitTest, TheFirstPartHasTheOutputsThatAreNotRows) {
  NormProblem whole = test::BatchNormInferenceProblem({4, 3, 7, BatchNormLayout::kNchw});
  whole.outputs.Add(Role::kRstd);
  EXPECT_TRUE(RowsOf(whole, 3, true).outputs.Has(Role::kRstd));
  EXPECT_FALSE(RowsOf(whole, 3, false).outputs.Has(Role::kRstd));
  EXPECT_TRUE(RowsOf(whole, 3, false).outputs.Has(Role::kY));
  NormProblem rows = test::RmsNormProblem(6, 5);
  rows.outputs.Add(Role::kRstd);
  EXPECT_TRUE(RowsOf(rows, 3, false).outputs.Has(Role::kRstd));
}

}  // namespace
}  // namespace norm::server
