// Row norms backward in f64 against central differences of the forward of the same backend.
#include <gtest/gtest.h>

#include <vector>

#include "tests/reference/finite_differences.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using reference::CentralDifferences;
using reference::ExpectNear;
using reference::NormalValues;

/// Differences of a step of 1e-4 are off by about its square, times a third derivative.
constexpr double kTolerance = 1e-6;
constexpr DTypePair kF64 = {DType::kF64, DType::kF64};

class RowNormGradcheckTest : public ::testing::TestWithParam<Op> {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(RowNormGradcheckTest, BackwardIsTheDerivativeOfForward) {
  for (int64_t hidden_size : {2, 5, 8, 33}) {
    SCOPED_TRACE(hidden_size);
    constexpr int64_t kRows = 3;
    const auto elements = static_cast<size_t>(kRows * hidden_size);
    RowForwardCase forward;
    forward.op = GetParam();
    forward.rows = kRows;
    forward.hidden_size = hidden_size;
    forward.dtypes = kF64;
    forward.eps = 0.1;  // keeps third derivatives small
    forward.x = NormalValues(elements, 101);
    forward.weight = NormalValues(static_cast<size_t>(hidden_size), 102);
    if (GetParam() == Op::kLayerNorm) {
      forward.bias = NormalValues(static_cast<size_t>(hidden_size), 103);
    }
    const std::vector<double> dy = NormalValues(elements, 104);
    const auto loss = [&] {
      const std::vector<double> y = ToValues(DType::kF64, RunCase(*runner_, forward).y);
      double sum = 0.0;
      for (size_t i = 0; i < elements; ++i) sum += dy[i] * y[i];
      return sum;
    };

    for (SavedStatistics statistics : {SavedStatistics::kGiven, SavedStatistics::kRecomputed}) {
      RowBackwardCase backward;
      backward.op = forward.op;
      backward.rows = kRows;
      backward.hidden_size = hidden_size;
      backward.dtypes = kF64;
      backward.eps = forward.eps;
      backward.statistics = statistics;
      backward.dy = dy;
      backward.x = forward.x;
      backward.weight = forward.weight;
      const RowBackwardOutputs out = RunCase(*runner_, backward);
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      ExpectNear(ToValues(DType::kF64, out.dx), CentralDifferences(forward.x, loss), kTolerance);
      ExpectNear(ToValues(DType::kF64, out.dweight), CentralDifferences(forward.weight, loss),
                 kTolerance);
      if (GetParam() == Op::kLayerNorm) {
        ExpectNear(ToValues(DType::kF64, out.dbias), CentralDifferences(forward.bias, loss),
                   kTolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, RowNormGradcheckTest, ::testing::Values(Op::kRmsNorm, Op::kLayerNorm),
                         [](const auto& named) {
                           return named.param == Op::kRmsNorm ? "RmsNorm" : "LayerNorm";
                         });

}  // namespace
}  // namespace norm::testing
