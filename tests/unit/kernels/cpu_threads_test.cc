// The CPU backend's bits do not depend on the number of threads.
#include <gtest/gtest.h>

#include "tests/support/batch_norm_case.h"
#include "tests/support/cpu_runner.h"
#include "tests/support/row_norm_case.h"

namespace norm::testing {
namespace {

class CpuThreadsTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  std::unique_ptr<NormRunner> one_ = MakeCpuRunner(1);
  std::unique_ptr<NormRunner> four_ = MakeCpuRunner(4);
};

TEST_P(CpuThreadsTest, RowNormBitsAreEqual) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (const auto& [rows, hidden_size] :
         {std::pair<int64_t, int64_t>{3000, 65}, std::pair<int64_t, int64_t>{20, 9001},
          std::pair<int64_t, int64_t>{50000, 3}}) {
      RowForwardCase forward;
      forward.op = op;
      forward.rows = rows;
      forward.hidden_size = hidden_size;
      forward.dtypes = GetParam();
      forward.x = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, 92);
      const RowForwardOutputs a = RunCase(*one_, forward);
      const RowForwardOutputs b = RunCase(*four_, forward);
      EXPECT_EQ(a.y, b.y);
      EXPECT_EQ(a.rstd, b.rstd);

      RowBackwardCase backward;
      backward.op = op;
      backward.rows = rows;
      backward.hidden_size = hidden_size;
      backward.dtypes = GetParam();
      backward.x = forward.x;
      backward.dy = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, 93);
      const RowBackwardOutputs c = RunCase(*one_, backward);
      const RowBackwardOutputs d = RunCase(*four_, backward);
      EXPECT_EQ(c.dx, d.dx);
      EXPECT_EQ(c.dweight, d.dweight);
      EXPECT_EQ(c.dbias, d.dbias);
    }
  }
}

TEST_P(CpuThreadsTest, BatchNormBitsAreEqual) {
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    for (const BatchNormShape& shape :
         {BatchNormShape{4, 33, 2000, layout}, BatchNormShape{9000, 20, 1, layout},
          BatchNormShape{1, 1, 200000, layout}}) {
      const int64_t elements = shape.batch * shape.channels * shape.spatial;
      BatchForwardCase forward;
      forward.shape = shape;
      forward.dtypes = GetParam();
      forward.x = MakeNormal(elements, 1.0, 1.0, GetParam().dtype, 94);
      const BatchForwardOutputs a = RunCase(*one_, forward);
      const BatchForwardOutputs b = RunCase(*four_, forward);
      EXPECT_EQ(a.y, b.y);
      EXPECT_EQ(a.mean, b.mean);
      EXPECT_EQ(a.rstd, b.rstd);

      BatchBackwardCase backward;
      backward.shape = shape;
      backward.dtypes = GetParam();
      backward.x = forward.x;
      backward.dy = MakeNormal(elements, 0.0, 1.0, GetParam().dtype, 95);
      const BatchBackwardOutputs c = RunCase(*one_, backward);
      const BatchBackwardOutputs d = RunCase(*four_, backward);
      EXPECT_EQ(c.dx, d.dx);
      EXPECT_EQ(c.dweight, d.dweight);
      EXPECT_EQ(c.dbias, d.dbias);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CpuThreadsTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kBF16, DType::kBF16},
                                           DTypePair{DType::kF64, DType::kF64}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
