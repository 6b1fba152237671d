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
  BatchKey Key(const NormProblem& problem) {
    return MakeBatchKey(*test::JobBuilder(problem).Build(nullptr), parameters_);
  }

  ParameterInterner parameters_;
};

TEST_F(BatchKeyTest, RowCountIsNotPartOfTheKey) {
  const BatchKey one = Key(test::LayerNormProblem(1, 16));
  const BatchKey many = Key(test::LayerNormProblem(1000, 16));
  EXPECT_EQ(one, many);
  EXPECT_EQ(absl::HashOf(one), absl::HashOf(many));
}

TEST_F(BatchKeyTest, EveryOtherFieldSeparates) {
  const NormProblem base = test::LayerNormProblem(2, 16);
  const BatchKey base_key = Key(base);
  const std::vector<std::pair<const char*, std::function<void(NormProblem&)>>> changes = {
      {"op", [](NormProblem& p) { p.op = Op::kRmsNorm; }},
      {"dtype", [](NormProblem& p) { p.dtype = DType::kF16; }},
      {"hidden_size", [](NormProblem& p) { p.hidden_size = 17; }},
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
    EXPECT_FALSE(Key(changed) == base_key) << name;
  }
  NormProblem half = base;
  half.dtype = DType::kBF16;
  const BatchKey f32_weight = Key(half);
  half.weight_dtype = DType::kBF16;
  EXPECT_FALSE(Key(half) == f32_weight);
}

TEST_F(BatchKeyTest, ParameterBytesSeparate) {
  const NormProblem problem = test::LayerNormProblem(1, 2);
  const auto key = [&](std::vector<float> weight, std::vector<float> bias) {
    return MakeBatchKey(*test::JobBuilder(problem)
                             .Input(Role::kWeight, weight)
                             .Input(Role::kBias, bias)
                             .Build(nullptr),
                        parameters_);
  };
  const BatchKey base = key({1, 2}, {3, 4});
  EXPECT_EQ(key({1, 2}, {3, 4}), base);
  EXPECT_FALSE(key({1, 2}, {3, 5}) == base);
  EXPECT_FALSE(key({1, 3}, {3, 4}) == base);
  EXPECT_FALSE(key({3, 4}, {1, 2}) == base);  // the same bytes in other roles
}

TEST_F(BatchKeyTest, XBytesAreNotPartOfTheKey) {
  const NormProblem problem = test::RmsNormProblem(1, 2);
  const auto key = [&](std::vector<float> x) {
    return MakeBatchKey(*test::JobBuilder(problem).Input(Role::kX, x).Build(nullptr), parameters_);
  };
  EXPECT_EQ(key({1, 2}), key({3, 4}));
}

TEST_F(BatchKeyTest, BatchNormChannelsLastMergesAcrossShapes) {
  const auto nhwc = BatchNormLayout::kNhwc;
  const auto nchw = BatchNormLayout::kNchw;
  const BatchKey flat = Key(test::BatchNormInferenceProblem({2, 8, 1, nchw}));
  EXPECT_EQ(Key(test::BatchNormInferenceProblem({2, 8, 1, nhwc})), flat);
  EXPECT_EQ(Key(test::BatchNormInferenceProblem({1, 8, 49, nhwc})), flat);
  const BatchKey planes = Key(test::BatchNormInferenceProblem({2, 8, 49, nchw}));
  EXPECT_FALSE(planes == flat);
  EXPECT_EQ(Key(test::BatchNormInferenceProblem({5, 8, 49, nchw})), planes);
  EXPECT_FALSE(Key(test::BatchNormInferenceProblem({2, 8, 36, nchw})) == planes);
}

TEST_F(BatchKeyTest, BatchNormRunningStatisticsSeparate) {
  const NormProblem problem = test::BatchNormInferenceProblem({1, 2, 1});
  const auto key = [&](Role role, std::vector<float> values) {
    return MakeBatchKey(*test::JobBuilder(problem).Input(role, values).Build(nullptr), parameters_);
  };
  EXPECT_FALSE(key(Role::kRunningMean, {1, 2}) == Key(problem));
  EXPECT_FALSE(key(Role::kRunningVar, {1, 2}) == Key(problem));
  EXPECT_FALSE(key(Role::kRunningVar, {1, 2}) == key(Role::kRunningMean, {1, 2}));
}

}  // namespace
}  // namespace norm::server
