// Row-norm failures that users of other implementations reported, each as one test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Pointwise;

constexpr DTypePair kF32 = {DType::kF32, DType::kF32};
constexpr DTypePair kF16 = {DType::kF16, DType::kF16};
constexpr DTypePair kBF16 = {DType::kBF16, DType::kBF16};

class RowNormFieldCaseTest : public ::testing::Test {
 protected:
  static RowForwardCase Forward(Op op, DTypePair dtypes, int64_t rows, double eps,
                                std::vector<double> x) {
    RowForwardCase problem;
    problem.op = op;
    problem.dtypes = dtypes;
    problem.rows = rows;
    problem.hidden_size = static_cast<int64_t>(x.size()) / rows;
    problem.eps = eps;
    for (double& value : x) {
      value = reference::RoundTo(FormatOf(dtypes.dtype), value);
    }
    problem.x = std::move(x);
    return problem;
  }
  static RowBackwardCase Backward(Op op, DTypePair dtypes, int64_t rows, std::vector<double> x,
                                  std::vector<double> dy) {
    RowBackwardCase problem;
    problem.op = op;
    problem.dtypes = dtypes;
    problem.rows = rows;
    problem.hidden_size = static_cast<int64_t>(x.size()) / rows;
    for (std::vector<double>* values : {&x, &dy}) {
      for (double& value : *values) {
        value = reference::RoundTo(FormatOf(dtypes.dtype), value);
      }
    }
    problem.x = std::move(x);
    problem.dy = std::move(dy);
    return problem;
  }
  std::vector<double> Y(const RowForwardCase& problem) {
    const RowForwardOutputs out = RunCase(*runner_, problem);
    EXPECT_TRUE(out.status.ok()) << out.status.message();
    return ToValues(problem.dtypes.dtype, out.y);
  }
  /// The next call after a special one still works.
  void CheckCanary() {
    RowForwardCase problem = Forward(Op::kRmsNorm, kF32, 1, 1e-6, {1, 2, 3, 4});
    problem.weight = {1, 1, 1, 1};
    EXPECT_THAT(Y(problem),
                Pointwise(DoubleNear(5e-6), {0.3651483, 0.7302967, 1.0954450, 1.4605934}));
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Case 1.
TEST_F(RowNormFieldCaseTest, LayerNormKeepsUnitSpreadOnABigMean) {
  const RowForwardCase problem =
      Forward(Op::kLayerNorm, kF32, 3, 1e-5,
              {2000, 2001, 2002, 2003, 60000, 60001, 60002, 60003, 80000, 80001, 80002, 80003});
  RunAndCheck(*runner_, problem);
  const std::vector<double> y = Y(problem);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_NEAR(y[row * 4], -1.3416354, 7e-6);
    EXPECT_NEAR(y[row * 4 + 3], 1.3416354, 7e-6);
  }
}

// Case 3.
TEST_F(RowNormFieldCaseTest, LayerNormResolvesATinySpreadOnALargeMean) {
  std::vector<double> short_row;
  for (int i = 0; i < 16; ++i) {
    short_row.push_back(10000 + 0.001 * i);
  }
  const RowForwardCase a = Forward(Op::kLayerNorm, kF32, 1, 1e-5, short_row);
  RunAndCheck(*runner_, a);
  EXPECT_NEAR(Y(a)[0], -1.331333, 7e-6);

  std::vector<double> long_rows;
  for (int row = 0; row < 4; ++row) {
    for (int i = 0; i < 32768; ++i) {
      long_rows.push_back(100 + 0.01 * ((37 * i) % 101 - 50) / 29);
    }
  }
  RunAndCheck(*runner_, Forward(Op::kLayerNorm, kF32, 4, 1e-5, long_rows));
}

// Case 5.
TEST_F(RowNormFieldCaseTest, F16SumsAndSquaresDoNotOverflow) {
  std::vector<double> rows;
  for (double value : {256.0, 300.0, 60000.0}) {
    rows.insert(rows.end(), 128, value);
  }
  RowForwardCase rms = Forward(Op::kRmsNorm, kF16, 3, 1e-6, rows);
  rms.weight.assign(128, 1.0);
  EXPECT_THAT(Y(rms), Each(1.0));

  std::vector<double> row(64, 2000.0);
  row[63] = 2001.0;
  const RowForwardCase layer = Forward(Op::kLayerNorm, kF16, 1, 1e-5, row);
  RunAndCheck(*runner_, layer);
  const std::vector<double> y = Y(layer);
  EXPECT_NEAR(y[63], 7.9347, 0.004);
  EXPECT_NEAR(y[0], -0.1259, 0.0001);
}

// Case 8.
TEST_F(RowNormFieldCaseTest, EpsIsNotNarrowedToTheDTypeOfX) {
  RowForwardCase zeros = Forward(Op::kLayerNorm, kF16, 1, 1e-12, std::vector<double>(10, 0.0));
  zeros.weight.assign(10, 1.0);
  zeros.bias.assign(10, 0.0);
  EXPECT_THAT(Y(zeros), Each(0.0));

  const RowForwardCase half = Forward(Op::kRmsNorm, kF16, 1, 1e-8, std::vector<double>(64, 1e-4));
  EXPECT_THAT(Y(half), Each(0.70703125));
  RunAndCheck(*runner_, Forward(Op::kRmsNorm, kBF16, 1, 1e-8, std::vector<double>(64, 1e-4)));
}

// Case 9.
TEST_F(RowNormFieldCaseTest, EpsZeroIsAllowedAndABadEpsIsRefused) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    RowForwardCase problem = Forward(op, kF32, 2, 0.0, {0, 0, 0, 0, 1, 2, 3, 5});
    RunAndCheck(*runner_, problem);  // the zero row is 0 * infinity: NaN, in that row only
    problem.eps = 1e-50;             // zero once it is f32: the row of zeros stays zero
    RunAndCheck(*runner_, Forward(op, kF32, 1, 1e-50, {1, 2, 3, 5}));
    for (double eps : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      problem.eps = eps;
      EXPECT_EQ(RunCase(*runner_, problem).status.code(), StatusCode::kInvalidArgument) << eps;
    }
    CheckCanary();
  }
}

// Case 11.
TEST_F(RowNormFieldCaseTest, HiddenSizeOneGivesTheBiasAndNoWeightGradient) {
  for (DTypePair dtypes : {kF32, kBF16}) {
    for (double weight : {123.0, 1e12}) {
      RowForwardCase forward =
          Forward(Op::kLayerNorm, dtypes, 6, 1e-5, {1e6, -3.1, 1e-3, 0, -1e30, 1232});
      forward.weight = {reference::RoundTo(FormatOf(dtypes.weight_dtype), weight)};
      forward.bias = {-1};
      EXPECT_THAT(Y(forward), Each(-1.0));

      RowBackwardCase backward = Backward(Op::kLayerNorm, dtypes, 6, forward.x, {1, 2, 3, 4, 5, 6});
      backward.weight = forward.weight;
      backward.statistics = SavedStatistics::kRecomputed;
      const RowBackwardOutputs out = RunCase(*runner_, backward);
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_THAT(ToValues(dtypes.dtype, out.dx), Each(0.0));
      EXPECT_EQ(ToValues(dtypes.weight_dtype, out.dweight)[0], 0.0);
      EXPECT_EQ(ToValues(dtypes.weight_dtype, out.dbias)[0], 21.0);
    }
  }
  EXPECT_THAT(Y(Forward(Op::kRmsNorm, kF32, 3, 1e-6, {2, -3, 0})),
              Pointwise(DoubleNear(1e-6), {1.0, -1.0, 0.0}));
}

// Case 13.
TEST_F(RowNormFieldCaseTest, F32WeightIsNotNarrowedForBf16Activations) {
  const DTypePair mixed = {DType::kBF16, DType::kF32};
  RowForwardCase forward = Forward(Op::kRmsNorm, mixed, 1, 1e-6, {1, 2, 3, 4});
  forward.weight.assign(4, 1.00390625);
  EXPECT_THAT(Y(forward), ::testing::ElementsAre(0.3671875, 0.734375, 1.1015625, 1.46875));

  RowBackwardCase backward = Backward(Op::kRmsNorm, mixed, 1, {1, 2, 3, 4}, {1, 1, 1, 1});
  backward.weight = forward.weight;
  RunAndCheck(*runner_, backward);
}

// Case 13.
TEST_F(RowNormFieldCaseTest, WeightOffsetIsAddedInFullPrecision) {
  RowForwardCase forward = Forward(Op::kRmsNorm, kBF16, 1, 1e-6, {1, 2, 3, 4});
  forward.weight.assign(4, 0.00390625);  // 1 + 2^-8 is not a bf16
  forward.weight_offset = 1.0;
  EXPECT_THAT(Y(forward), ::testing::ElementsAre(0.3671875, 0.734375, 1.1015625, 1.46875));
}

// Case 14.
TEST_F(RowNormFieldCaseTest, ParameterGradientsAreNotSummedInANarrowType) {
  constexpr int64_t kRows = 4096;
  constexpr int64_t kHidden = 64;
  std::vector<double> signs;
  for (int64_t i = 0; i < kRows * kHidden; ++i) {
    signs.push_back(i % 2 == 0 ? 1.0 : -1.0);
  }
  for (DTypePair dtypes : {kBF16, kF16}) {
    for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
      RowBackwardCase problem = Backward(op, dtypes, kRows, signs, signs);
      problem.weight.assign(kHidden, 1.0);
      problem.eps = 1e-12;
      RowBackwardOutputs out = RunCase(*runner_, problem);
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_THAT(ToValues(dtypes.weight_dtype, out.dweight), Each(4096.0));
      if (op == Op::kLayerNorm) {
        problem.dy.assign(signs.size(), 1.0);
        out = RunCase(*runner_, problem);
        EXPECT_THAT(ToValues(dtypes.weight_dtype, out.dbias), Each(4096.0));
      }
    }
  }
}

// Case 14.
TEST_F(RowNormFieldCaseTest, BiasGradientDoesNotStallOverTwentyMillionRows) {
  constexpr int64_t kRows = 20000000;
  const std::vector<uint16_t> x(kRows * 4, 0x3C00);  // f16 ones keep the test small; dbias is f32
  const std::vector<uint16_t>& dy = x;
  std::vector<uint16_t> dx(kRows * 4);
  std::vector<float> dbias(4);
  LayerNormBackwardArgs args;
  args.x = x.data();
  args.dy = dy.data();
  args.dx = dx.data();
  args.dbias = dbias.data();
  args.rows = kRows;
  args.hidden_size = 4;
  args.dtype = DType::kF16;
  args.weight_dtype = DType::kF32;
  const Status status = runner_->Run(args);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(dbias, Each(20000000.0f));
}

// Case 16.
TEST_F(RowNormFieldCaseTest, PaddingLanesDoNotEnterTheVariance) {
  for (int64_t hidden_size : {3, 17, 100, 769, 1536, 5000}) {
    std::vector<double> x;
    std::vector<double> dy;
    for (int row = 0; row < 2; ++row) {
      for (int64_t i = 0; i < hidden_size; ++i) {
        x.push_back(10.0 + static_cast<double>(i));
        dy.push_back(1.0 + static_cast<double>(i) / static_cast<double>(hidden_size));
      }
    }
    SCOPED_TRACE(hidden_size);
    const RowForwardCase forward = Forward(Op::kLayerNorm, kF32, 2, 1e-5, x);
    RunAndCheck(*runner_, forward);
    RunAndCheck(*runner_, Backward(Op::kLayerNorm, kF32, 2, x, dy));
    if (hidden_size == 3) {
      EXPECT_NEAR(Y(forward)[0], -1.224736, 7e-6);
    }
    if (hidden_size == 17) {
      EXPECT_NEAR(Y(forward)[0], -1.632993, 9e-6);
    }
  }
}

// Case 19.
TEST_F(RowNormFieldCaseTest, TheLastColumnOfALongRowCounts) {
  for (int64_t hidden_size : {8192, 12289, 65536, 200003, 1048576}) {
    std::vector<double> x(static_cast<size_t>(hidden_size), 0.0);
    x.back() = 1.0;
    SCOPED_TRACE(hidden_size);
    const RowForwardCase rms = Forward(Op::kRmsNorm, kF32, 1, 1e-12, x);
    const double expected = std::sqrt(static_cast<double>(hidden_size));
    EXPECT_NEAR(Y(rms).back(), expected, 5e-6 * expected);
    RunAndCheck(*runner_, Forward(Op::kLayerNorm, kF32, 1, 1e-12, x));
  }
}

// Case 36.
TEST_F(RowNormFieldCaseTest, LayerNormGradientSubtractsItsMeanOnce) {
  RowBackwardCase problem = Backward(Op::kLayerNorm, kF32, 1, {1, 2, 3, 4}, {1, 1, 1, 1});
  problem.weight = {1, 1, 1, 1};
  std::vector<double> dx = ToValues(DType::kF32, RunCase(*runner_, problem).dx);
  EXPECT_THAT(dx, Each(DoubleNear(0.0, 1e-6)));
  problem.dy = {2, 1, 1, 1};
  dx = ToValues(DType::kF32, RunCase(*runner_, problem).dx);
  EXPECT_THAT(dx, Pointwise(DoubleNear(2e-6), {0.268330, -0.357768, -0.089443, 0.178882}));

  for (int64_t hidden_size : {4097, 65536}) {
    SCOPED_TRACE(hidden_size);
    problem = Backward(Op::kLayerNorm, kF32, 1, MakeNormal(hidden_size, 0.0, 1.0, DType::kF32, 41),
                       MakeNormal(hidden_size, 1.0, 0.01, DType::kF32, 42));
    RunAndCheck(*runner_, problem);
    dx = ToValues(DType::kF32, RunCase(*runner_, problem).dx);
    const double sum = std::accumulate(dx.begin(), dx.end(), 0.0);
    const double magnitude = std::accumulate(dx.begin(), dx.end(), 0.0,
                                             [](double a, double b) { return a + std::fabs(b); });
    EXPECT_LE(std::fabs(sum), 1e-5 * magnitude);
  }
}

// The spread and the mean are right to f32 whatever the elements at the row's ends and middle are, from
// which they could be guessed.
TEST_F(RowNormFieldCaseTest, LayerNormStatisticsDoNotDependOnSomeElements) {
  constexpr double kHalfUlp = 0x1p-24;
  for (const DTypePair& dtypes : {kF32, kBF16}) {
    for (int64_t hidden_size : {128, 256, 1000, 1024, 4096, 8192}) {
      SCOPED_TRACE(hidden_size);
      std::vector<double> x = MakeNormal(hidden_size, 0.25, 1.0, dtypes.dtype, 43);
      for (int64_t i : {int64_t{0}, hidden_size / 2, hidden_size - 1}) {
        x[static_cast<size_t>(i)] = 3.0;
      }
      const RowForwardCase problem = Forward(Op::kLayerNorm, dtypes, 1, 1e-5, x);
      const double size = static_cast<double>(hidden_size);
      const double mean = std::accumulate(problem.x.begin(), problem.x.end(), 0.0) / size;
      double variance = 0.0;
      for (double value : problem.x) variance += (value - mean) * (value - mean) / size;
      const double rstd = 1.0 / std::sqrt(variance + 1e-5);
      const RowForwardOutputs out = RunCase(*runner_, problem);
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_NEAR(ToValues(DType::kF32, out.rstd)[0], rstd, 3 * kHalfUlp * rstd);
      // One rounding at the size of the values: the mean is small beside them.
      EXPECT_NEAR(ToValues(DType::kF32, out.mean)[0], mean,
                  kHalfUlp * (std::fabs(mean) + std::sqrt(variance)));
    }
  }
}

// Means beside which the spread is small, or nothing, between rows whose mean is small: with weight
// and bias, more rows than a device has multiprocessors, an odd number of them.
TEST_F(RowNormFieldCaseTest, LayerNormOfNarrowRowsOfManyMeans) {
  constexpr int64_t kRows = 261;
  constexpr double kMeans[] = {0.0, 0.25, 0.999, 1.0, 1.001, -3.0, 100.0, -20000.0};
  for (const DTypePair& dtypes :
       {kF16, kBF16, DTypePair{DType::kBF16, DType::kF32}, DTypePair{DType::kF16, DType::kF32}}) {
    for (int64_t hidden_size : {512, 2048, 5120, 12288}) {
      SCOPED_TRACE(::testing::Message() << DTypeName(dtypes.dtype) << " " << hidden_size);
      std::vector<double> x = MakeNormal(kRows * hidden_size, 0.0, 1.0, DType::kF64, 45);
      for (int64_t row = 0; row < kRows; ++row) {
        const double mean = kMeans[static_cast<size_t>(row) % std::size(kMeans)];
        const double spread = row % 5 == 4 ? 0.0 : 1.0;
        for (int64_t i = row * hidden_size; i < (row + 1) * hidden_size; ++i) {
          x[static_cast<size_t>(i)] = mean + spread * x[static_cast<size_t>(i)];
        }
      }
      RowForwardCase problem = Forward(Op::kLayerNorm, dtypes, kRows, 1e-5, x);
      problem.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 46);
      problem.bias = MakeNormal(hidden_size, 0.0, 0.5, dtypes.weight_dtype, 47);
      RunAndCheck(*runner_, problem);
    }
  }
}

}  // namespace
}  // namespace norm::testing
