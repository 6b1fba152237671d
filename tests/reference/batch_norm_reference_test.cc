#include "tests/reference/batch_norm_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>

#include "tests/reference/finite_differences.h"

namespace norm::reference {
namespace {

TEST(BatchNormReferenceTest, NormalizesWithBiasedAndUpdatesWithUnbiasedVariance) {
  BatchNormProblem problem;
  problem.shape = {4, 1, 1, ChannelLayout::kNchw};
  problem.eps = 1e-5;
  problem.momentum = 0.1;
  problem.x = {1, 2, 3, 4};
  problem.running_mean = {0};
  problem.running_var = {1};
  const BatchNormResult result = BatchNormForward(problem);
  ExpectNear(result.y, {-1.3416354, -0.4472118, 0.4472118, 1.3416354}, 1e-7);
  EXPECT_NEAR(result.new_running_mean[0], 0.25, 1e-12);
  EXPECT_NEAR(result.new_running_var[0], 1.0666667, 1e-7);
}

TEST(BatchNormReferenceTest, UsesRunningStatisticsInInference) {
  BatchNormProblem problem;
  problem.shape = {1, 2, 1, ChannelLayout::kNchw};
  problem.statistics = StatisticsSource::kRunning;
  problem.x = {5, 7};
  problem.running_mean = {1, 3};
  problem.running_var = {4, 16};
  problem.weight = {3, 5};
  problem.bias = {0, 1};
  ExpectNear(BatchNormForward(problem).y, {6, 6}, 1e-15);
}

TEST(BatchNormReferenceTest, EmptyBatchKeepsRunningStatistics) {
  BatchNormProblem problem;
  problem.shape = {0, 1, 9, ChannelLayout::kNhwc};
  problem.eps = 0.25;
  problem.momentum = 0.1;
  problem.running_mean = {3};
  problem.running_var = {7};
  const BatchNormResult result = BatchNormForward(problem);
  EXPECT_EQ(result.new_running_mean[0], 3);
  EXPECT_EQ(result.new_running_var[0], 7);
  EXPECT_EQ(result.mean[0], 0);
  EXPECT_EQ(result.rstd[0], 2);
}

TEST(BatchNormReferenceTest, LayoutsAgreeOnPermutedData) {
  BatchNormProblem nchw;
  nchw.shape = {2, 3, 5, ChannelLayout::kNchw};
  nchw.eps = 1e-5;
  nchw.x = NormalValues(30, 1);
  nchw.weight = NormalValues(3, 2);
  BatchNormProblem nhwc = nchw;
  nhwc.shape.layout = ChannelLayout::kNhwc;
  const auto to_nhwc = [](size_t b, size_t c, size_t s) { return (b * 5 + s) * 3 + c; };
  for (size_t i = 0; i < 30; ++i) {
    nhwc.x[to_nhwc(i / 15, i / 5 % 3, i % 5)] = nchw.x[i];
  }
  const std::vector<double> a = BatchNormForward(nchw).y;
  const std::vector<double> b = BatchNormForward(nhwc).y;
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(a[i], b[to_nhwc(i / 15, i / 5 % 3, i % 5)], 1e-14);
  }
}

class BatchNormGradientTest
    : public testing::TestWithParam<std::tuple<StatisticsSource, ChannelLayout>> {};

TEST_P(BatchNormGradientTest, AgreesWithCentralDifferences) {
  const auto [statistics, layout] = GetParam();
  BatchNormProblem forward;
  forward.shape = {2, 3, 4, layout};
  forward.statistics = statistics;
  forward.eps = 1e-3;
  forward.x = NormalValues(24, 1);
  forward.weight = NormalValues(3, 2);
  forward.bias = NormalValues(3, 3);
  if (statistics == StatisticsSource::kRunning) {
    forward.running_mean = {0.5, -1, 2};
    forward.running_var = {1, 2, 0.25};
  }
  const std::vector<double> dy = NormalValues(24, 4);
  const auto loss = [&] {
    const std::vector<double> y = BatchNormForward(forward).y;
    double total = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      total += dy[i] * y[i];
    }
    return total;
  };

  BatchNormGradientProblem backward;
  backward.shape = forward.shape;
  backward.statistics = statistics;
  backward.eps = forward.eps;
  backward.dy = dy;
  backward.x = forward.x;
  backward.weight = forward.weight;
  backward.running_mean = forward.running_mean;
  backward.running_var = forward.running_var;
  const BatchNormGradients gradients = BatchNormBackward(backward);
  ExpectNear(gradients.dx, CentralDifferences(forward.x, loss), 1e-6);
  ExpectNear(gradients.dweight, CentralDifferences(forward.weight, loss), 1e-6);
  ExpectNear(gradients.dbias, CentralDifferences(forward.bias, loss), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    ModesAndLayouts, BatchNormGradientTest,
    testing::Combine(testing::Values(StatisticsSource::kBatch, StatisticsSource::kRunning),
                     testing::Values(ChannelLayout::kNchw, ChannelLayout::kNhwc)),
    [](const auto& named) {
      const bool batch = std::get<0>(named.param) == StatisticsSource::kBatch;
      const bool nchw = std::get<1>(named.param) == ChannelLayout::kNchw;
      return std::string(batch ? "Batch" : "Running") + (nchw ? "Nchw" : "Nhwc");
    });

}  // namespace
}  // namespace norm::reference
