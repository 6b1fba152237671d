// Row norms backward against the oracle: every shape and dtype pair, statistics given and
// recomputed.
#include <gtest/gtest.h>

#include "tests/support/row_norm_sweep.h"
#include "tests/support/test_runner.h"
#include "tests/support/tolerance.h"

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

// dweight of one row is dy * (x - mean) * rstd: where x lies close to the mean, what rounding took
// from the given mean is not small against x - mean.
TEST(RowNormBackwardMeanTest, DweightOfOneRowIsRightWhereXIsCloseToTheMean) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  for (int64_t hidden_size : {2048, 8192}) {
    SCOPED_TRACE(hidden_size);
    RowBackwardCase problem = MakeCase(Op::kLayerNorm, {1, hidden_size}, {DType::kF32, DType::kF32},
                                       BackwardOption::kWeight, DataKind::kNormal);
    for (double& x : problem.x) x = static_cast<float>(x + 0.25);
    const RowBackwardOutputs out = RunCase(*runner, problem);
    ASSERT_TRUE(out.status.ok()) << out.status.message();
    reference::RowNormGradientProblem reference;
    reference.kind = reference::RowKind::kLayer;
    reference.rows = problem.rows;
    reference.hidden_size = problem.hidden_size;
    reference.eps = problem.eps;
    reference.dy = problem.dy;
    reference.x = problem.x;
    reference.weight = problem.weight;
    const reference::RowNormGradients want = reference::RowNormBackward(reference);
    // No floor: 1e-6 of each term.
    EXPECT_TRUE(Matches(Output::kDParameter, DType::kF32, ToValues(DType::kF32, out.dweight),
                        {&want.dweight, [&](size_t i) { return want.dweight_magnitude[i]; }}));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowNormBackwardDataTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
