// Row norms forward against the oracle: every shape, dtype pair, option and data kind.
#include <gtest/gtest.h>

#include "tests/support/row_norm_sweep.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

/// Which optional tensors and options a case uses.
enum class ForwardOption {
  kPlain,
  kWeight,
  kWeightOffset,     // RMS only
  kBias,             // LayerNorm only
  kWeightAndBias,    // LayerNorm only
  kResidual,         // with weight (and bias)
  kNormalizedFirst,  // with weight (and bias)
};

const char* OptionName(ForwardOption option) {
  switch (option) {
    case ForwardOption::kPlain:
      return "plain";
    case ForwardOption::kWeight:
      return "weight";
    case ForwardOption::kWeightOffset:
      return "weight_offset";
    case ForwardOption::kBias:
      return "bias";
    case ForwardOption::kWeightAndBias:
      return "weight and bias";
    case ForwardOption::kResidual:
      return "residual";
    case ForwardOption::kNormalizedFirst:
      return "normalized first";
  }
  return "unknown";
}

std::vector<ForwardOption> OptionsFor(Op op, const RowShape& shape) {
  if (IsLarge(shape)) {
    return {ForwardOption::kResidual};
  }
  if (op == Op::kRmsNorm) {
    return {ForwardOption::kPlain, ForwardOption::kWeight, ForwardOption::kWeightOffset,
            ForwardOption::kResidual, ForwardOption::kNormalizedFirst};
  }
  return {ForwardOption::kPlain,         ForwardOption::kWeight,   ForwardOption::kBias,
          ForwardOption::kWeightAndBias, ForwardOption::kResidual, ForwardOption::kNormalizedFirst};
}

RowForwardCase MakeCase(Op op, const RowShape& shape, DTypePair dtypes, ForwardOption option,
                        DataKind kind) {
  RowForwardCase problem;
  problem.op = op;
  problem.rows = shape.rows;
  problem.hidden_size = shape.hidden_size;
  problem.dtypes = dtypes;
  problem.eps = op == Op::kRmsNorm ? 1e-6 : 1e-5;
  problem.x = MakeData(kind, shape.rows, shape.hidden_size, dtypes.dtype, 11);
  const auto parameter = [&](double shift, uint64_t seed) {
    return MakeNormal(shape.hidden_size, shift, 0.5, dtypes.weight_dtype, seed);
  };
  if (option != ForwardOption::kPlain && option != ForwardOption::kBias) {
    problem.weight = parameter(option == ForwardOption::kWeightOffset ? 0.0 : 1.0, 12);
  }
  if (option == ForwardOption::kWeightOffset) {
    problem.weight_offset = 1.0;
  }
  const bool takes_bias =
      option == ForwardOption::kBias || option == ForwardOption::kWeightAndBias ||
      option == ForwardOption::kResidual || option == ForwardOption::kNormalizedFirst;
  if (op == Op::kLayerNorm && takes_bias) {
    problem.bias = parameter(0.0, 13);
  }
  if (option == ForwardOption::kResidual) {
    problem.residual = MakeData(kind, shape.rows, shape.hidden_size, dtypes.dtype, 14);
  }
  if (option == ForwardOption::kNormalizedFirst) {
    problem.rounding = Rounding::kNormalizedFirst;
  }
  return problem;
}

class RowNormForwardSweep : public ::testing::TestWithParam<RowSweepPoint> {
 protected:
  void CheckEveryOption(Op op) {
    const RowSweepPoint& point = GetParam();
    for (ForwardOption option : OptionsFor(op, point.shape)) {
      SCOPED_TRACE(OptionName(option));
      RunAndCheck(*runner_, MakeCase(op, point.shape, point.dtypes, option, DataKind::kNormal));
    }
  }

 private:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

class RmsNormForwardTest : public RowNormForwardSweep {};
TEST_P(RmsNormForwardTest, MatchesReference) { CheckEveryOption(Op::kRmsNorm); }
INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormForwardTest, ::testing::ValuesIn(RowSweep()),
                         [](const auto& named) { return RowSweepName(named.param); });

class LayerNormForwardTest : public RowNormForwardSweep {};
TEST_P(LayerNormForwardTest, MatchesReference) { CheckEveryOption(Op::kLayerNorm); }
INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormForwardTest, ::testing::ValuesIn(RowSweep()),
                         [](const auto& named) { return RowSweepName(named.param); });

struct DataPoint {
  DataKind kind;
  DTypePair dtypes;
};

std::vector<DataPoint> DataPoints() {
  std::vector<DataPoint> points;
  for (DataKind kind : kDataKinds) {
    for (const DTypePair& dtypes : kDTypePairs) {
      points.push_back({kind, dtypes});
    }
  }
  return points;
}

class RowNormDataTest : public ::testing::TestWithParam<DataPoint> {};

TEST_P(RowNormDataTest, ForwardMatchesReference) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  const DataPoint& point = GetParam();
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (const RowShape& shape : {RowShape{4, 3}, RowShape{6, 100}, RowShape{5, 4099}}) {
      SCOPED_TRACE(OpName(op));
      SCOPED_TRACE(shape.hidden_size);
      RunAndCheck(*runner, MakeCase(op, shape, point.dtypes, ForwardOption::kPlain, point.kind));
      RunAndCheck(*runner, MakeCase(op, shape, point.dtypes, ForwardOption::kWeight, point.kind));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RowNormDataTest, ::testing::ValuesIn(DataPoints()),
                         [](const auto& named) {
                           return DataKindName(named.param.kind) +
                                  DTypePairName(named.param.dtypes);
                         });

}  // namespace
}  // namespace norm::testing
