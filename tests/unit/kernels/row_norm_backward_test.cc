// Row norms backward against the oracle: every shape and dtype pair, statistics given and
// recomputed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/row_norm_sweep.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

enum class BackwardOption {
  kPlain,
  kWeight,
  kWeightOffset,  // RMS only
  kRecomputed,    // with weight
  kResidual,      // dresidual_sum, with weight
};

const char* OptionName(BackwardOption option) {
  switch (option) {
    case BackwardOption::kPlain:
      return "plain";
    case BackwardOption::kWeight:
      return "weight";
    case BackwardOption::kWeightOffset:
      return "weight_offset";
    case BackwardOption::kRecomputed:
      return "recomputed statistics";
    case BackwardOption::kResidual:
      return "dresidual_sum";
  }
  return "unknown";
}

std::vector<BackwardOption> OptionsFor(Op op, const RowShape& shape) {
  if (IsLarge(shape)) {
    return {BackwardOption::kRecomputed};
  }
  std::vector<BackwardOption> options = {BackwardOption::kPlain, BackwardOption::kWeight,
                                         BackwardOption::kRecomputed, BackwardOption::kResidual};
  if (op == Op::kRmsNorm) {
    options.push_back(BackwardOption::kWeightOffset);
  }
  return options;
}

RowBackwardCase MakeCase(Op op, const RowShape& shape, DTypePair dtypes, BackwardOption option,
                         DataKind kind) {
  RowBackwardCase problem;
  problem.op = op;
  problem.rows = shape.rows;
  problem.hidden_size = shape.hidden_size;
  problem.dtypes = dtypes;
  problem.x = MakeData(kind, shape.rows, shape.hidden_size, dtypes.dtype, 21);
  problem.dy = MakeData(DataKind::kNormal, shape.rows, shape.hidden_size, dtypes.dtype, 22);
  if (option != BackwardOption::kPlain) {
    problem.weight =
        MakeNormal(shape.hidden_size, option == BackwardOption::kWeightOffset ? 0.0 : 1.0, 0.5,
                   dtypes.weight_dtype, 23);
  }
  if (option == BackwardOption::kWeightOffset) {
    problem.weight_offset = 1.0;
  }
  if (option == BackwardOption::kRecomputed) {
    problem.statistics = SavedStatistics::kRecomputed;
  }
  if (option == BackwardOption::kResidual) {
    problem.dresidual_sum =
        MakeData(DataKind::kNormal, shape.rows, shape.hidden_size, dtypes.dtype, 24);
  }
  return problem;
}

class RowNormBackwardSweep : public ::testing::TestWithParam<RowSweepPoint> {
 protected:
  void CheckEveryOption(Op op) {
    const RowSweepPoint& point = GetParam();
    for (BackwardOption option : OptionsFor(op, point.shape)) {
      SCOPED_TRACE(OptionName(option));
      RunAndCheck(*runner_, MakeCase(op, point.shape, point.dtypes, option, DataKind::kNormal));
    }
  }

 private:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

class RmsNormBackwardTest : public RowNormBackwardSweep {};
TEST_P(RmsNormBackwardTest, MatchesReference) { CheckEveryOption(Op::kRmsNorm); }
INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormBackwardTest, ::testing::ValuesIn(RowSweep()),
                         [](const auto& named) { return RowSweepName(named.param); });

class LayerNormBackwardTest : public RowNormBackwardSweep {};
TEST_P(LayerNormBackwardTest, MatchesReference) { CheckEveryOption(Op::kLayerNorm); }
INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormBackwardTest, ::testing::ValuesIn(RowSweep()),
                         [](const auto& named) { return RowSweepName(named.param); });

class RowNormBackwardDataTest : public ::testing::TestWithParam<DTypePair> {};

TEST_P(RowNormBackwardDataTest, MatchesReferenceForLargeMeansAndBigSums) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  for (DataKind kind : {DataKind::kLargeMean, DataKind::kSumsPastF16, DataKind::kUniform}) {
    for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
      for (BackwardOption option : {BackwardOption::kWeight, BackwardOption::kRecomputed}) {
        SCOPED_TRACE(DataKindName(kind));
        SCOPED_TRACE(OpName(op));
        SCOPED_TRACE(OptionName(option));
        RunAndCheck(*runner, MakeCase(op, {6, 100}, GetParam(), option, kind));
        RunAndCheck(*runner, MakeCase(op, {3, 4099}, GetParam(), option, kind));
      }
    }
  }
}

/// x + offset, and in some columns of every row the mean but for 2^-5 to 2^-17 of it, as far as the
/// dtype holds that.
std::vector<double> CloseToTheMean(std::vector<double> x, int64_t hidden_size, double offset,
                                   DType dtype) {
  const reference::Format format = FormatOf(dtype);
  const auto columns = static_cast<size_t>(hidden_size);
  const size_t close = std::min<size_t>(7, columns / 2);
  for (size_t row = 0; row < x.size(); row += columns) {
    double others = 0.0;
    for (size_t i = 0; i < columns; ++i) {
      double& value = x[row + i];
      value = reference::RoundTo(format, value + offset);
      others += value;
    }
    std::vector<double> shares(close);
    double sum_of_shares = 0.0;
    for (size_t j = 0; j < close; ++j) {
      others -= x[row + j * columns / close];
      shares[j] = 1.0 + std::ldexp(j % 2 == 0 ? 1.0 : -1.0, -5 - 2 * static_cast<int>(j));
      sum_of_shares += shares[j];
    }
    const double mean = others / (static_cast<double>(columns) - sum_of_shares);
    for (size_t j = 0; j < close; ++j) {
      x[row + j * columns / close] = reference::RoundTo(format, mean * shares[j]);
    }
  }
  return x;
}

struct MeanPoint {
  DTypePair dtypes;
  int64_t hidden_size;
};

/// Sizes: some of each kernel family.
std::vector<MeanPoint> MeanPoints() {
  std::vector<MeanPoint> points;
  for (const DTypePair& dtypes : kDTypePairs) {
    for (int64_t hidden_size :
         {16, 130, 256, 257, 1000, 1023, 2048, 4097, 5001, 8192, 12288, 30001}) {
      points.push_back({dtypes, hidden_size});
    }
  }
  return points;
}

class RowNormBackwardMeanTest : public ::testing::TestWithParam<MeanPoint> {};

// A term of dweight is dy * (x - mean) * rstd: where x lies close to the mean in every row, what
// rounding took from the given mean is not small against x - mean, and dweight has no other terms.
TEST_P(RowNormBackwardMeanTest, DweightOfFewRowsIsRightWhereXIsCloseToTheMean) {
  const auto& [dtypes, hidden_size] = GetParam();
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  for (int64_t rows : {1, 2, 16}) {
    for (double offset : {0.0, 0.25, 3.0, 40.0}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows moved by " << offset);
      RowBackwardCase problem = MakeCase(Op::kLayerNorm, {rows, hidden_size}, dtypes,
                                         BackwardOption::kWeight, DataKind::kNormal);
      problem.statistics =
          offset == 0.25 || offset == 40.0 ? SavedStatistics::kGiven : SavedStatistics::kRecomputed;
      problem.x = CloseToTheMean(problem.x, hidden_size, offset, dtypes.dtype);
      RunAndCheck(*runner, problem);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowNormBackwardMeanTest, ::testing::ValuesIn(MeanPoints()),
                         [](const auto& named) {
                           return DTypePairName(named.param.dtypes) + "Hidden" +
                                  std::to_string(named.param.hidden_size);
                         });

INSTANTIATE_TEST_SUITE_P(DTypes, RowNormBackwardDataTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
