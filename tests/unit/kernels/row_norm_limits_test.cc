// Row norms at the edges of their contract: no rows, very many rows, results in place, NaN, odd
// addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using ::testing::Each;

class RowNormLimitsTest : public ::testing::Test {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Case 22.
TEST_F(RowNormLimitsTest, EveryOneOfMillionsOfTinyRowsIsRight) {
  constexpr int64_t kPeriod = 1009;
  constexpr int64_t kHidden = 3;
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    RowForwardCase period;
    period.op = op;
    period.rows = kPeriod;
    period.hidden_size = kHidden;
    period.dtypes = {DType::kBF16, DType::kBF16};
    period.x = MakeData(DataKind::kNormal, kPeriod, kHidden, DType::kBF16, 51);
    RunAndCheck(*runner_, period);
    const std::vector<std::byte> x = ToBytes(DType::kBF16, period.x);
    const std::vector<std::byte> y = RunCase(*runner_, period).y;

    for (int64_t rows : {int64_t{8388607}, int64_t{8388609}, int64_t{16777217}}) {
      const size_t bytes = static_cast<size_t>(rows * kHidden) * 2;
      std::vector<std::byte> many_x(bytes);
      for (size_t at = 0; at < bytes; at += x.size()) {
        std::memcpy(many_x.data() + at, x.data(), std::min(x.size(), bytes - at));
      }
      std::vector<std::byte> many_y(bytes);
      const auto run = [&](auto args) {
        args.x = many_x.data();
        args.y = many_y.data();
        args.rows = rows;
        args.hidden_size = kHidden;
        args.dtype = DType::kBF16;
        args.weight_dtype = DType::kBF16;
        args.eps = period.eps;
        return runner_->Run(args);
      };
      const Status status =
          op == Op::kRmsNorm ? run(RmsNormForwardArgs()) : run(LayerNormForwardArgs());
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t at = 0; at < bytes; at += y.size()) {
        ASSERT_EQ(std::memcmp(many_y.data() + at, y.data(), std::min(y.size(), bytes - at)), 0)
            << OpName(op) << " of " << rows << " rows differs near row " << at / (2 * kHidden);
      }
    }
  }
}

// Case 25.
TEST_F(RowNormLimitsTest, ZeroRowsWriteZeroGradients) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (const DTypePair& dtypes : kDTypePairs) {
      RowForwardCase forward;
      forward.op = op;
      forward.hidden_size = 64;
      forward.dtypes = dtypes;
      forward.weight = MakeNormal(64, 1.0, 0.1, dtypes.weight_dtype, 52);
      const RowForwardOutputs y = RunCase(*runner_, forward);
      EXPECT_TRUE(y.status.ok()) << y.status.message();

      RowBackwardCase backward;
      backward.op = op;
      backward.hidden_size = 64;
      backward.dtypes = dtypes;
      backward.weight = forward.weight;
      const RowBackwardOutputs out = RunCase(*runner_, backward);
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_THAT(out.dweight, Each(std::byte{0}));
      EXPECT_THAT(out.dbias, Each(std::byte{0}));
    }
  }
}

TEST_F(RowNormLimitsTest, ForwardInPlaceEqualsForwardApart) {
  for (const DTypePair& dtypes : kDTypePairs) {
    RowForwardCase problem;
    problem.op = Op::kLayerNorm;
    problem.rows = 5;
    problem.hidden_size = 1000;
    problem.dtypes = dtypes;
    problem.x = MakeData(DataKind::kNormal, 5, 1000, dtypes.dtype, 53);
    problem.residual = MakeData(DataKind::kNormal, 5, 1000, dtypes.dtype, 54);
    const RowForwardOutputs apart = RunCase(*runner_, problem);
    ASSERT_TRUE(apart.status.ok()) << apart.status.message();

    std::vector<std::byte> x = ToBytes(dtypes.dtype, problem.x);
    std::vector<std::byte> residual = ToBytes(dtypes.dtype, problem.residual);
    LayerNormForwardArgs args;
    args.x = x.data();
    args.residual = residual.data();
    args.y = x.data();
    args.residual_sum = residual.data();
    args.rows = 5;
    args.hidden_size = 1000;
    args.dtype = dtypes.dtype;
    args.weight_dtype = dtypes.weight_dtype;
    args.eps = problem.eps;
    const Status status = runner_->Run(args);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(x, apart.y);
    EXPECT_EQ(residual, apart.residual_sum);

    // The other way round: y over residual, the sum over x.
    x = ToBytes(dtypes.dtype, problem.x);
    residual = ToBytes(dtypes.dtype, problem.residual);
    args.x = x.data();
    args.residual = residual.data();
    args.y = residual.data();
    args.residual_sum = x.data();
    const Status swapped = runner_->Run(args);
    ASSERT_TRUE(swapped.ok()) << swapped.message();
    EXPECT_EQ(residual, apart.y);
    EXPECT_EQ(x, apart.residual_sum);
  }
}

TEST_F(RowNormLimitsTest, BackwardInPlaceEqualsBackwardApart) {
  for (const DTypePair& dtypes : kDTypePairs) {
    RowBackwardCase problem;
    problem.op = Op::kLayerNorm;
    problem.rows = 7;
    problem.hidden_size = 333;
    problem.dtypes = dtypes;
    problem.statistics = SavedStatistics::kRecomputed;
    problem.x = MakeData(DataKind::kNormal, 7, 333, dtypes.dtype, 55);
    problem.dy = MakeData(DataKind::kNormal, 7, 333, dtypes.dtype, 56);
    problem.dresidual_sum = MakeData(DataKind::kNormal, 7, 333, dtypes.dtype, 57);
    const RowBackwardOutputs apart = RunCase(*runner_, problem);
    ASSERT_TRUE(apart.status.ok()) << apart.status.message();

    for (int replaced = 0; replaced < 3; ++replaced) {
      std::vector<std::byte> tensors[] = {ToBytes(dtypes.dtype, problem.x),
                                          ToBytes(dtypes.dtype, problem.dy),
                                          ToBytes(dtypes.dtype, problem.dresidual_sum)};
      std::vector<std::byte> dweight(apart.dweight.size());
      std::vector<std::byte> dbias(apart.dbias.size());
      LayerNormBackwardArgs args;
      args.x = tensors[0].data();
      args.dy = tensors[1].data();
      args.dresidual_sum = tensors[2].data();
      args.dx = tensors[replaced].data();
      args.dweight = dweight.data();
      args.dbias = dbias.data();
      args.rows = 7;
      args.hidden_size = 333;
      args.dtype = dtypes.dtype;
      args.weight_dtype = dtypes.weight_dtype;
      args.eps = problem.eps;
      const Status status = runner_->Run(args);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(tensors[replaced], apart.dx);
      EXPECT_EQ(dweight, apart.dweight);
      EXPECT_EQ(dbias, apart.dbias);
    }
  }
}

TEST_F(RowNormLimitsTest, NanAndInfinityStayInTheirRow) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (const DTypePair& dtypes : kDTypePairs) {
      RowForwardCase clean;
      clean.op = op;
      clean.rows = 5;
      clean.hidden_size = 97;
      clean.dtypes = dtypes;
      clean.x = MakeData(DataKind::kNormal, 5, 97, dtypes.dtype, 58);
      RowForwardCase dirty = clean;
      dirty.x[97 + 5] = std::numeric_limits<double>::infinity();
      dirty.x[3 * 97 + 96] = std::nan("");
      const std::vector<std::byte> a = RunCase(*runner_, clean).y;
      const std::vector<std::byte> b = RunCase(*runner_, dirty).y;
      const std::ptrdiff_t row = 97 * static_cast<std::ptrdiff_t>(DTypeSize(dtypes.dtype));
      for (std::ptrdiff_t r : {0, 2, 4}) {
        EXPECT_TRUE(std::equal(a.begin() + r * row, a.begin() + (r + 1) * row, b.begin() + r * row))
            << OpName(op) << " row " << r;
      }
      const std::vector<double> y = ToValues(dtypes.dtype, b);
      for (size_t i = 3 * 97; i < 4 * 97; ++i) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      }
    }
  }
}

// Case 18.
TEST_F(RowNormLimitsTest, OddAddressesGiveTheReferenceResult) {
  for (int64_t hidden_size : {3584, 46, 3586, 1200}) {
    for (size_t misaligned : {1, 3, 5, 8}) {
      for (DTypePair dtypes :
           {DTypePair{DType::kBF16, DType::kBF16}, DTypePair{DType::kF32, DType::kF32}}) {
        SCOPED_TRACE(hidden_size);
        SCOPED_TRACE(misaligned);
        RowForwardCase forward;
        forward.rows = 5;
        forward.hidden_size = hidden_size;
        forward.dtypes = dtypes;
        forward.x = MakeData(DataKind::kNormal, 5, hidden_size, dtypes.dtype, 59);
        forward.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 60);
        RunAndCheck(*runner_, forward, {misaligned});

        RowBackwardCase backward;
        backward.op = Op::kLayerNorm;
        backward.rows = 5;
        backward.hidden_size = hidden_size;
        backward.dtypes = dtypes;
        backward.x = forward.x;
        backward.dy = MakeData(DataKind::kNormal, 5, hidden_size, dtypes.dtype, 61);
        backward.weight = forward.weight;
        RunAndCheck(*runner_, backward, {misaligned});
      }
    }
  }
}

TEST_F(RowNormLimitsTest, HalfAnUlpPastTheLargestF16BecomesInfinity) {
  // Two values of equal size normalize to +-1; weight then lands around the overflow boundary.
  RowForwardCase problem;
  problem.rows = 1;
  problem.hidden_size = 2;
  problem.eps = 0.0;
  problem.dtypes = {DType::kF16, DType::kF32};
  problem.x = {1, -1};
  problem.weight = {65519, 65520};
  const std::vector<double> y = ToValues(DType::kF16, RunCase(*runner_, problem).y);
  EXPECT_EQ(y[0], 65504.0);
  EXPECT_EQ(y[1], -std::numeric_limits<double>::infinity());
}

TEST_F(RowNormLimitsTest, NarrowResultsRoundTiesToEvenAndKeepSubnormals) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const reference::Format format = FormatOf(dtype);
    // x = 1 everywhere and eps = 0 make y the f32 weight itself, rounded once.
    std::vector<double> weight;
    for (uint64_t bits = 0; bits < (dtype == DType::kF16 ? 0x7BFFu : 0x7F7Fu); bits += 7) {
      const double low = reference::DecodeBits(format, bits);
      const double middle = (low + reference::DecodeBits(format, bits + 1)) / 2;
      weight.push_back(reference::RoundTo(reference::Format::kF32, middle));
    }
    RowForwardCase problem;
    problem.rows = 1;
    problem.hidden_size = static_cast<int64_t>(weight.size());
    problem.eps = 0.0;
    problem.dtypes = {dtype, DType::kF32};
    problem.x.assign(weight.size(), 1.0);
    problem.weight = weight;
    EXPECT_EQ(RunCase(*runner_, problem).y, ToBytes(dtype, weight));
  }
}

}  // namespace
}  // namespace norm::testing
