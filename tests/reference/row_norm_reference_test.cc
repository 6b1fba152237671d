#include "tests/reference/row_norm_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/reference/finite_differences.h"

namespace norm::reference {
namespace {

TEST(RowNormReferenceTest, NormalizesByRootMeanSquare) {
  RowNormProblem problem;
  problem.rows = 1;
  problem.hidden_size = 4;
  problem.eps = 1e-6;
  problem.x = {1, 2, 3, 4};
  problem.weight = {1, 1, 1, 1};
  // 1 / sqrt(7.5 + 1e-6) = 0.36514835
  ExpectNear(RowNormForward(problem).y, {0.3651483, 0.7302967, 1.0954450, 1.4605934}, 1e-7);
}

TEST(RowNormReferenceTest, NormalizesToZeroMeanAndUnitVariance) {
  RowNormProblem problem;
  problem.kind = RowKind::kLayer;
  problem.rows = 1;
  problem.hidden_size = 4;
  problem.eps = 1e-5;
  problem.x = {2000, 2001, 2002, 2003};
  const RowNormResult result = RowNormForward(problem);
  ExpectNear(result.y, {-1.3416354, -0.4472118, 0.4472118, 1.3416354}, 1e-7);
  EXPECT_EQ(result.mean[0], 2001.5);
  EXPECT_NEAR(result.rstd[0], 1 / std::sqrt(1.25001), 1e-12);
}

TEST(RowNormReferenceTest, AppliesWeightWithOffsetAndBias) {
  RowNormProblem problem;
  problem.kind = RowKind::kLayer;
  problem.rows = 1;
  problem.hidden_size = 2;
  problem.x = {-1, 1};
  problem.weight = {2, 3};
  problem.bias = {10, 20};
  problem.weight_offset = 1;
  ExpectNear(RowNormForward(problem).y, {-3 + 10, 4 + 20}, 1e-15);
}

TEST(RowNormReferenceTest, RoundsTheResidualSumBeforeNormalizing) {
  RowNormProblem problem;
  problem.format = Format::kBF16;
  problem.rows = 1;
  problem.hidden_size = 2;
  problem.x = {256, 1};
  problem.residual = {1, 1};  // 257 lies between the bf16 values 256 and 258, ties to even
  const RowNormResult result = RowNormForward(problem);
  EXPECT_EQ(result.residual_sum, (std::vector<double>{256, 2}));
  EXPECT_NEAR(result.y[0], 256 / std::sqrt((256.0 * 256 + 4) / 2), 1e-15);
}

TEST(RowNormReferenceTest, RoundsTheNormalizedValueFirstOnRequest) {
  RowNormProblem problem;
  problem.format = Format::kBF16;
  problem.rounding = RowRounding::kNormalizedFirst;
  problem.rows = 1;
  problem.hidden_size = 4;
  problem.eps = 1e-6;
  problem.x = {1, 2, 3, 4};
  problem.weight = {3, 3, 3, 3};
  // 0.3651483 in bf16 is 187 / 512.
  EXPECT_EQ(RowNormForward(problem).y[0], 3 * 187.0 / 512);
}

TEST(RowNormReferenceTest, LayerNormGradientSubtractsBothMeans) {
  RowNormGradientProblem problem;
  problem.kind = RowKind::kLayer;
  problem.rows = 1;
  problem.hidden_size = 4;
  problem.eps = 1e-5;
  problem.x = {1, 2, 3, 4};
  problem.dy = {2, 1, 1, 1};
  const RowNormGradients gradients = RowNormBackward(problem);
  ExpectNear(gradients.dx, {0.268330, -0.357768, -0.089443, 0.178882}, 1e-6);
  EXPECT_EQ(gradients.dbias, problem.dy);
}

class RowNormGradientTest : public testing::TestWithParam<RowKind> {};

TEST_P(RowNormGradientTest, AgreesWithCentralDifferences) {
  const bool layer = GetParam() == RowKind::kLayer;
  RowNormProblem forward;
  forward.kind = GetParam();
  forward.format = Format::kF64;
  forward.rows = 3;
  forward.hidden_size = 7;
  forward.eps = 1e-3;
  forward.weight_offset = layer ? 0.0 : 1.0;
  forward.x = NormalValues(21, 1);
  forward.residual = NormalValues(21, 2);
  forward.weight = NormalValues(7, 3);
  if (layer) {
    forward.bias = NormalValues(7, 4);
  }
  const std::vector<double> dy = NormalValues(21, 5);
  const std::vector<double> dsum = NormalValues(21, 6);
  const auto loss = [&] {
    const RowNormResult result = RowNormForward(forward);
    double total = 0;
    for (size_t i = 0; i < dy.size(); ++i) {
      total += dy[i] * result.y[i] + dsum[i] * result.residual_sum[i];
    }
    return total;
  };

  RowNormGradientProblem backward;
  backward.kind = forward.kind;
  backward.rows = forward.rows;
  backward.hidden_size = forward.hidden_size;
  backward.eps = forward.eps;
  backward.weight_offset = forward.weight_offset;
  backward.dy = dy;
  backward.x = RowNormForward(forward).residual_sum;
  backward.weight = forward.weight;
  backward.dresidual_sum = dsum;
  const RowNormGradients gradients = RowNormBackward(backward);
  ExpectNear(gradients.dx, CentralDifferences(forward.x, loss), 1e-6);
  ExpectNear(gradients.dweight, CentralDifferences(forward.weight, loss), 1e-6);
  if (layer) {
    ExpectNear(gradients.dbias, CentralDifferences(forward.bias, loss), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RowNormGradientTest,
                         testing::Values(RowKind::kRms, RowKind::kLayer), [](const auto& named) {
                           return named.param == RowKind::kRms ? "Rms" : "Layer";
                         });

}  // namespace
}  // namespace norm::reference
