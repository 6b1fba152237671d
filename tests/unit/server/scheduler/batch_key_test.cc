#include "server/scheduler/batch_key.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/hash/hash.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

class BatchKeyTest : public testing::Test {
 protected:
  JobKeys Keys(test::JobBuilder builder) {
    return MakeJobKeys(*builder.Build(nullptr), parameters_);
  }
  JobKeys Keys(const NormProblem& problem) { return Keys(test::JobBuilder(problem)); }

  ParameterInterner parameters_;
};

TEST_F(BatchKeyTest, RowCountIsNotPartOfTheKeys) {
  const JobKeys one = Keys(test::LayerNormProblem(1, 16));
  const JobKeys many = Keys(test::LayerNormProblem(1000, 16));
  EXPECT_EQ(one.batch, many.batch);
  EXPECT_EQ(absl::HashOf(one.batch), absl::HashOf(many.batch));
  EXPECT_EQ(one.segment, many.segment);
  EXPECT_EQ(absl::HashOf(*one.segment), absl::HashOf(*many.segment));
}

using Changes = std::vector<std::pair<const char*, std::function<void(NormProblem&)>>>;

TEST_F(BatchKeyTest, WhatTheKernelsShareSeparatesLaunches) {
  const NormProblem base = test::LayerNormProblem(2, 16);
  const BatchKey base_key = Keys(base).batch;
  const Changes changes = {
      {"op", [](NormProblem& p) { p.op = Op::kRmsNorm; }},
      {"direction", [](NormProblem& p) { p.direction = Direction::kBackward; }},
      {"dtype", [](NormProblem& p) { p.dtype = DType::kF16; }},
      {"hidden_size", [](NormProblem& p) { p.hidden_size = 17; }},
  };
  for (const auto& [name, change] : changes) {
    NormProblem changed = base;
    change(changed);
    EXPECT_FALSE(Keys(changed).batch == base_key) << name;
  }
  NormProblem half = base;
  half.dtype = DType::kBF16;
  const BatchKey f32_weight = Keys(half).batch;
  half.weight_dtype = DType::kBF16;
  EXPECT_FALSE(Keys(half).batch == f32_weight);
}

TEST_F(BatchKeyTest, EverythingElseSeparatesSegmentsOfOneLaunch) {
  const NormProblem base = test::LayerNormProblem(2, 16);
  const JobKeys base_keys = Keys(base);
  const Changes changes = {
      {"eps", [](NormProblem& p) { p.eps = 1e-6; }},
      {"weight_offset", [](NormProblem& p) { p.weight_offset = 1.0; }},
      {"rounding", [](NormProblem& p) { p.rounding = Rounding::kNormalizedFirst; }},
      {"no weight",
       [](NormProblem& p) {
         p.inputs = test::Roles({Role::kX, Role::kBias});
       }},
      {"weight alone",
       [](NormProblem& p) {
         p.inputs = test::Roles({Role::kX, Role::kWeight});
       }},
      {"residual", [](NormProblem& p) { p.inputs.Add(Role::kResidual); }},
      {"mean returned", [](NormProblem& p) { p.outputs.Add(Role::kMean); }},
      {"rstd returned", [](NormProblem& p) { p.outputs.Add(Role::kRstd); }},
  };
  for (const auto& [name, change] : changes) {
    NormProblem changed = base;
    change(changed);
    const JobKeys keys = Keys(changed);
    EXPECT_EQ(keys.batch, base_keys.batch) << name;
    EXPECT_FALSE(keys.segment == base_keys.segment) << name;
  }
}

TEST_F(BatchKeyTest, ParameterBytesSeparateSegments) {
  const NormProblem problem = test::LayerNormProblem(1, 2);
  const auto key = [&](std::vector<float> weight, std::vector<float> bias) {
    return Keys(test::JobBuilder(problem).Input(Role::kWeight, weight).Input(Role::kBias, bias))
        .segment;
  };
  const auto base = key({1, 2}, {3, 4});
  EXPECT_EQ(key({1, 2}, {3, 4}), base);
  EXPECT_FALSE(key({1, 2}, {3, 5}) == base);
  EXPECT_FALSE(key({1, 3}, {3, 4}) == base);
  EXPECT_FALSE(key({3, 4}, {1, 2}) == base);  // the same bytes in other roles
}

TEST_F(BatchKeyTest, XBytesAreNotPartOfTheKeys) {
  const NormProblem problem = test::RmsNormProblem(1, 2);
  const auto key = [&](std::vector<float> x) {
    return Keys(test::JobBuilder(problem).Input(Role::kX, x)).segment;
  };
  EXPECT_EQ(key({1, 2}), key({3, 4}));
}

TEST_F(BatchKeyTest, WhatReducesOverRowsIsASegmentOfItsOwn) {
  NormProblem backward = test::RmsNormProblem(2, 4);
  backward.direction = Direction::kBackward;
  EXPECT_FALSE(Keys(backward).segment.has_value());
  NormProblem training = test::BatchNormInferenceProblem({2, 4, 3});
  training.batch_norm_mode = BatchNormMode::kTraining;
  EXPECT_FALSE(Keys(training).segment.has_value());
}

TEST_F(BatchKeyTest, BatchNormInferenceMergesWhereChannelsAreLastAcrossShapes) {
  const auto nhwc = BatchNormLayout::kNhwc;
  const auto nchw = BatchNormLayout::kNchw;
  const JobKeys flat = Keys(test::BatchNormInferenceProblem({2, 8, 1, nchw}));
  for (const BatchNormShape& shape : {BatchNormShape{2, 8, 1, nhwc}, {1, 8, 49, nhwc}}) {
    const JobKeys keys = Keys(test::BatchNormInferenceProblem(shape));
    EXPECT_EQ(keys.batch, flat.batch);
    EXPECT_EQ(keys.segment, flat.segment);
  }
  const BatchKey planes = Keys(test::BatchNormInferenceProblem({2, 8, 49, nchw})).batch;
  EXPECT_FALSE(planes == flat.batch);
  EXPECT_EQ(Keys(test::BatchNormInferenceProblem({5, 8, 49, nchw})).batch, planes);
  EXPECT_FALSE(Keys(test::BatchNormInferenceProblem({2, 8, 36, nchw})).batch == planes);
}

TEST_F(BatchKeyTest, BatchNormTrainingSharesLaunchesOfItsSpatialSizeLayoutAndMode) {
  const auto key = [&](const BatchNormShape& shape, BatchNormMode mode) {
    NormProblem problem = test::BatchNormInferenceProblem(shape);
    problem.batch_norm_mode = mode;
    return Keys(problem).batch;
  };
  constexpr auto kTraining = BatchNormMode::kTraining;
  const BatchKey base = key({2, 8, 9, BatchNormLayout::kNhwc}, kTraining);
  EXPECT_EQ(key({7, 8, 9, BatchNormLayout::kNhwc}, kTraining), base);
  EXPECT_FALSE(key({2, 8, 18, BatchNormLayout::kNhwc}, kTraining) == base);
  EXPECT_FALSE(key({2, 8, 9, BatchNormLayout::kNchw}, kTraining) == base);
  EXPECT_FALSE(key({2, 8, 9, BatchNormLayout::kNhwc}, BatchNormMode::kInference) == base);
}

TEST_F(BatchKeyTest, BatchNormRunningStatisticsSeparateSegments) {
  const NormProblem problem = test::BatchNormInferenceProblem({1, 2, 1});
  const auto key = [&](Role role, std::vector<float> values) {
    return Keys(test::JobBuilder(problem).Input(role, values)).segment;
  };
  const auto zeros = Keys(problem).segment;
  EXPECT_FALSE(key(Role::kRunningMean, {1, 2}) == zeros);
  EXPECT_FALSE(key(Role::kRunningVar, {1, 2}) == zeros);
  EXPECT_FALSE(key(Role::kRunningVar, {1, 2}) == key(Role::kRunningMean, {1, 2}));
}

TEST(SharesLaunchesTest, LargeJobsTravelAlone) {
  // x, y and the weight, f32.
  EXPECT_TRUE(SharesLaunches(test::RmsNormProblem(2047, 1024)));
  EXPECT_FALSE(SharesLaunches(test::RmsNormProblem(2048, 1024)));
}

}  // namespace
}  // namespace norm::server
