// Bits of a result: equal alone and in a batch, at any address, run to run, and with an absent or
// neutral parameter.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/batch_norm_case.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

std::vector<double> Slice(const std::vector<double>& values, int64_t begin, int64_t count) {
  return std::vector<double>(values.begin() + begin, values.begin() + begin + count);
}

class BitEqualityTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  static RowForwardCase MakeForward(Op op, int64_t rows, int64_t hidden_size) {
    RowForwardCase problem;
    problem.op = op;
    problem.rows = rows;
    problem.hidden_size = hidden_size;
    problem.dtypes = GetParam();
    problem.x = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, 71);
    problem.weight = MakeNormal(hidden_size, 1.0, 0.5, GetParam().weight_dtype, 72);
    return problem;
  }
  static RowBackwardCase MakeBackward(Op op, int64_t rows, int64_t hidden_size) {
    const RowForwardCase forward = MakeForward(op, rows, hidden_size);
    RowBackwardCase problem;
    problem.op = op;
    problem.rows = rows;
    problem.hidden_size = hidden_size;
    problem.dtypes = GetParam();
    problem.x = forward.x;
    problem.dy = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, 73);
    problem.weight = forward.weight;
    problem.statistics = SavedStatistics::kRecomputed;
    return problem;
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Case 34.
TEST_P(BitEqualityTest, ARowAloneEqualsTheRowInABatch) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : {5, 100, 1023, 1024, 4096, 5001}) {
      constexpr int64_t kRows = 300;
      const RowForwardCase all = MakeForward(op, kRows, hidden_size);
      const RowForwardOutputs batch = RunCase(*runner_, all);
      const RowBackwardCase all_back = MakeBackward(op, kRows, hidden_size);
      const RowBackwardOutputs batch_back = RunCase(*runner_, all_back);
      const std::ptrdiff_t row_bytes =
          hidden_size * static_cast<std::ptrdiff_t>(DTypeSize(GetParam().dtype));
      for (int64_t chunk : {1, 16, 255, 257}) {
        for (int64_t begin : {int64_t{0}, kRows - chunk}) {
          SCOPED_TRACE(chunk);
          RowForwardCase part = all;
          part.rows = chunk;
          part.x = Slice(all.x, begin * hidden_size, chunk * hidden_size);
          const std::vector<std::byte> y = RunCase(*runner_, part).y;
          EXPECT_TRUE(std::equal(y.begin(), y.end(), batch.y.begin() + begin * row_bytes));

          RowBackwardCase part_back = all_back;
          part_back.rows = chunk;
          part_back.x = part.x;
          part_back.dy = Slice(all_back.dy, begin * hidden_size, chunk * hidden_size);
          const std::vector<std::byte> dx = RunCase(*runner_, part_back).dx;
          EXPECT_TRUE(std::equal(dx.begin(), dx.end(), batch_back.dx.begin() + begin * row_bytes));
        }
      }
    }
  }
}

// Aligned requests with all parameters take kernels of their own: short rows, and few long ones, which
// have several blocks each.
TEST_P(BitEqualityTest, FewRowsEqualThoseOfABatchAndAtAnyAddress) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size :
         {64, 128, 192, 256, 512, 1032, 2056, 4096, 6144, 8192, 8200, 12288, 16384}) {
      SCOPED_TRACE(hidden_size);
      RowForwardCase all = MakeForward(op, 140, hidden_size);
      if (op == Op::kLayerNorm) {
        all.bias = MakeNormal(hidden_size, 0.0, 0.5, GetParam().weight_dtype, 79);
      }
      const RowForwardOutputs batch = RunCase(*runner_, all);
      for (int64_t rows : {1, 7, 16, 33}) {
        SCOPED_TRACE(rows);
        RowForwardCase few = all;
        few.rows = rows;
        few.x.resize(static_cast<size_t>(rows * hidden_size));
        const RowForwardOutputs part = RunCase(*runner_, few);
        EXPECT_TRUE(std::equal(part.y.begin(), part.y.end(), batch.y.begin()));
        EXPECT_TRUE(std::equal(part.rstd.begin(), part.rstd.end(), batch.rstd.begin()));
        EXPECT_TRUE(std::equal(part.mean.begin(), part.mean.end(), batch.mean.begin()));
        EXPECT_EQ(RunCase(*runner_, few, {1}).y, part.y);
      }
    }
  }
}

// Rows whose means ask for another pass, beside rows that do not, in one block.
TEST_P(BitEqualityTest, MeansOfOtherRowsDoNotChangeLayerNorms) {
  constexpr int64_t kRows = 141;
  for (int64_t hidden_size : {256, 2048, 4096, 8192, 12288, 16384}) {
    SCOPED_TRACE(hidden_size);
    RowForwardCase plain = MakeForward(Op::kLayerNorm, kRows, hidden_size);
    plain.bias = MakeNormal(hidden_size, 0.0, 0.5, GetParam().weight_dtype, 79);
    RowForwardCase mixed = plain;
    for (int64_t i = 0; i < kRows * hidden_size; ++i) {
      if (i / hidden_size % 2 != 0) mixed.x[static_cast<size_t>(i)] = i % 2 == 0 ? 64.0 : 64.5;
    }
    const RowForwardOutputs want = RunCase(*runner_, plain);
    const RowForwardOutputs got = RunCase(*runner_, mixed);
    const std::ptrdiff_t row_bytes =
        hidden_size * static_cast<std::ptrdiff_t>(DTypeSize(GetParam().dtype));
    for (int64_t row = 0; row < kRows; row += 2) {
      EXPECT_TRUE(std::equal(got.y.begin() + row * row_bytes, got.y.begin() + (row + 1) * row_bytes,
                             want.y.begin() + row * row_bytes))
          << row;
    }
    EXPECT_EQ(RunCase(*runner_, mixed, {1}).y, got.y);
  }
}

TEST_P(BitEqualityTest, AddressesDoNotChangeRowNorms) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : {33, 1024, 1200}) {
      const RowForwardCase forward = MakeForward(op, 9, hidden_size);
      const RowBackwardCase backward = MakeBackward(op, 9, hidden_size);
      const RowForwardOutputs aligned = RunCase(*runner_, forward);
      const RowBackwardOutputs aligned_back = RunCase(*runner_, backward);
      for (size_t misaligned : {1, 2, 7}) {
        const RowForwardOutputs moved = RunCase(*runner_, forward, {misaligned});
        EXPECT_EQ(moved.y, aligned.y);
        EXPECT_EQ(moved.rstd, aligned.rstd);
        EXPECT_EQ(moved.mean, aligned.mean);
        const RowBackwardOutputs moved_back = RunCase(*runner_, backward, {misaligned});
        EXPECT_EQ(moved_back.dx, aligned_back.dx);
        EXPECT_EQ(moved_back.dweight, aligned_back.dweight);
        EXPECT_EQ(moved_back.dbias, aligned_back.dbias);
      }
    }
  }
}

// Case 15.
TEST_P(BitEqualityTest, GradientsAreEqualRunToRun) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    const RowBackwardCase backward = MakeBackward(op, 1000, 130);
    const RowBackwardOutputs first = RunCase(*runner_, backward);
    for (int run = 0; run < 10; ++run) {
      const RowBackwardOutputs again = RunCase(*runner_, backward);
      EXPECT_EQ(again.dx, first.dx);
      EXPECT_EQ(again.dweight, first.dweight);
      EXPECT_EQ(again.dbias, first.dbias);
    }
  }
}

// Case 15 at its own size; LayerNorm, which has all three gradients, as often as the case says.
class RepeatedGradientsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 8192;
  static constexpr int64_t kHidden = 1024;
  static constexpr DTypePair kF32 = {DType::kF32, DType::kF32};

  template <typename Case>
  void ExpectEqualRuns(const Case& problem, int runs) {
    const auto first = RunCase(*runner_, problem);
    for (int run = 1; run < runs; ++run) {
      const auto again = RunCase(*runner_, problem);
      ASSERT_EQ(again.dx, first.dx) << "run " << run;
      ASSERT_EQ(again.dweight, first.dweight) << "run " << run;
      ASSERT_EQ(again.dbias, first.dbias) << "run " << run;
    }
  }
  static RowBackwardCase MakeRows(Op op) {
    RowBackwardCase rows;
    rows.op = op;
    rows.rows = kRows;
    rows.hidden_size = kHidden;
    rows.dtypes = kF32;
    rows.x = MakeData(DataKind::kNormal, kRows, kHidden, DType::kF32, 76);
    rows.dy = MakeData(DataKind::kNormal, kRows, kHidden, DType::kF32, 77);
    rows.weight = MakeNormal(kHidden, 1.0, 0.5, DType::kF32, 78);
    rows.statistics = SavedStatistics::kRecomputed;
    return rows;
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_F(RepeatedGradientsTest, OfLayerNormAreEqualInFiftyRuns) {
  ExpectEqualRuns(MakeRows(Op::kLayerNorm), 50);
}

TEST_F(RepeatedGradientsTest, OfRmsNormAreEqualInTenRuns) {
  ExpectEqualRuns(MakeRows(Op::kRmsNorm), 10);
}

TEST_F(RepeatedGradientsTest, OfBatchNormAreEqualInTenRuns) {
  BatchBackwardCase channels;
  channels.shape = {kRows, kHidden, 1, BatchNormLayout::kNchw};
  channels.dtypes = kF32;
  channels.x = MakeNormal(kRows * kHidden, 1.0, 2.0, DType::kF32, 76);
  channels.dy = MakeNormal(kRows * kHidden, 0.0, 1.0, DType::kF32, 77);
  ExpectEqualRuns(channels, 10);
}

// Case 24.
TEST_P(BitEqualityTest, AnAbsentParameterEqualsANeutralOne) {
  RowForwardCase problem = MakeForward(Op::kLayerNorm, 4, 16);
  const std::vector<std::byte> weight_only = RunCase(*runner_, problem).y;
  problem.bias.assign(16, 0.0);
  EXPECT_EQ(RunCase(*runner_, problem).y, weight_only);
  problem.bias.clear();
  problem.weight.clear();
  const std::vector<std::byte> plain = RunCase(*runner_, problem).y;
  problem.weight.assign(16, 1.0);
  EXPECT_EQ(RunCase(*runner_, problem).y, plain);
}

TEST_P(BitEqualityTest, BatchNormIsEqualRunToRunAndAtAnyAddress) {
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    for (const BatchNormShape& shape :
         {BatchNormShape{3, 65, 1000, layout}, BatchNormShape{700, 12, 1, layout}}) {
      const int64_t elements = shape.batch * shape.channels * shape.spatial;
      BatchForwardCase forward;
      forward.shape = shape;
      forward.dtypes = GetParam();
      forward.x = MakeNormal(elements, 1.0, 2.0, GetParam().dtype, 74);
      BatchBackwardCase backward;
      backward.shape = shape;
      backward.dtypes = GetParam();
      backward.x = forward.x;
      backward.dy = MakeNormal(elements, 0.0, 1.0, GetParam().dtype, 75);
      const BatchForwardOutputs first = RunCase(*runner_, forward);
      const BatchBackwardOutputs first_back = RunCase(*runner_, backward);
      for (size_t misaligned : {0, 1, 3}) {
        const BatchForwardOutputs again = RunCase(*runner_, forward, {misaligned});
        EXPECT_EQ(again.y, first.y);
        EXPECT_EQ(again.mean, first.mean);
        EXPECT_EQ(again.rstd, first.rstd);
        const BatchBackwardOutputs again_back = RunCase(*runner_, backward, {misaligned});
        EXPECT_EQ(again_back.dx, first_back.dx);
        EXPECT_EQ(again_back.dweight, first_back.dweight);
        EXPECT_EQ(again_back.dbias, first_back.dbias);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BitEqualityTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
