// Channel-last BatchNorm ([values, channels]) at sizes where a device's blocks share the rows of a
// channel: every dtype pair, both modes, hard data, bits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/batch_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

constexpr DTypePair kF32 = {DType::kF32, DType::kF32};

/// Slices of one and of several granules, the last one partial; rows that are and are not whole
/// chunks; rows that are not multiples of 16 bytes.
constexpr BatchNormShape kShapes[] = {
    {2, 64, 9000, BatchNormLayout::kNhwc},  {1, 32, 17000, BatchNormLayout::kNhwc},
    {9001, 128, 1, BatchNormLayout::kNchw}, {4300, 256, 1, BatchNormLayout::kNhwc},
    {90, 520, 50, BatchNormLayout::kNhwc},  {2150, 1024, 1, BatchNormLayout::kNchw},
    {5, 36, 3500, BatchNormLayout::kNhwc},  {17000, 4, 1, BatchNormLayout::kNchw},
    {40, 34816, 1, BatchNormLayout::kNhwc},
};

std::string Name(const BatchNormShape& shape) {
  return "Values" + std::to_string(shape.batch * shape.spatial) + "Channels" +
         std::to_string(shape.channels);
}

BatchForwardCase MakeForward(const BatchNormShape& shape, DTypePair dtypes, BatchNormMode mode) {
  BatchForwardCase problem;
  problem.shape = shape;
  problem.mode = mode;
  problem.dtypes = dtypes;
  problem.x = MakeNormal(shape.batch * shape.channels * shape.spatial, 1.5, 2.0, dtypes.dtype, 131);
  problem.weight = MakeNormal(shape.channels, 1.0, 0.5, dtypes.weight_dtype, 132);
  problem.bias = MakeNormal(shape.channels, 0.0, 0.5, dtypes.weight_dtype, 133);
  const DType statistics = StatisticsDType(dtypes.dtype);
  problem.running_mean = MakeNormal(shape.channels, 1.0, 1.0, statistics, 134);
  problem.running_var = MakeNormal(shape.channels, 4.0, 0.2, statistics, 135);
  return problem;
}

BatchBackwardCase MakeBackward(const BatchNormShape& shape, DTypePair dtypes, BatchNormMode mode) {
  const BatchForwardCase forward = MakeForward(shape, dtypes, mode);
  BatchBackwardCase problem;
  problem.shape = shape;
  problem.mode = mode;
  problem.dtypes = dtypes;
  problem.x = forward.x;
  problem.dy = MakeNormal(static_cast<int64_t>(forward.x.size()), 0.25, 1.0, dtypes.dtype, 136);
  problem.weight = forward.weight;
  if (mode == BatchNormMode::kInference) {
    problem.running_mean = forward.running_mean;
    problem.running_var = forward.running_var;
  }
  return problem;
}

class BatchNormRowsTest : public ::testing::TestWithParam<std::tuple<BatchNormShape, DTypePair>> {
 protected:
  BatchNormShape shape() const { return std::get<0>(GetParam()); }
  DTypePair dtypes() const { return std::get<1>(GetParam()); }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(BatchNormRowsTest, ForwardMatchesReference) {
  RunAndCheck(*runner_, MakeForward(shape(), dtypes(), BatchNormMode::kTraining));
  RunAndCheck(*runner_, MakeForward(shape(), dtypes(), BatchNormMode::kInference));
}

TEST_P(BatchNormRowsTest, BackwardMatchesReference) {
  BatchBackwardCase problem = MakeBackward(shape(), dtypes(), BatchNormMode::kTraining);
  RunAndCheck(*runner_, problem);
  problem.statistics = SavedStatistics::kRecomputed;
  RunAndCheck(*runner_, problem);
  RunAndCheck(*runner_, MakeBackward(shape(), dtypes(), BatchNormMode::kInference));
}

TEST_P(BatchNormRowsTest, BitsAreEqualRunToRunAndAtAnyAddress) {
  const BatchForwardCase forward = MakeForward(shape(), dtypes(), BatchNormMode::kTraining);
  const BatchBackwardCase backward = MakeBackward(shape(), dtypes(), BatchNormMode::kTraining);
  const BatchForwardCase inference = MakeForward(shape(), dtypes(), BatchNormMode::kInference);
  const BatchForwardOutputs first = RunCase(*runner_, forward);
  const BatchBackwardOutputs first_back = RunCase(*runner_, backward);
  const BatchForwardOutputs first_inference = RunCase(*runner_, inference);
  for (size_t misaligned : {0, 1, 2, 4}) {
    SCOPED_TRACE(misaligned);
    const BatchForwardOutputs again = RunCase(*runner_, forward, {misaligned});
    EXPECT_EQ(again.y, first.y);
    EXPECT_EQ(again.mean, first.mean);
    EXPECT_EQ(again.rstd, first.rstd);
    EXPECT_EQ(again.new_running_mean, first.new_running_mean);
    EXPECT_EQ(again.new_running_var, first.new_running_var);
    const BatchBackwardOutputs again_back = RunCase(*runner_, backward, {misaligned});
    EXPECT_EQ(again_back.dx, first_back.dx);
    EXPECT_EQ(again_back.dweight, first_back.dweight);
    EXPECT_EQ(again_back.dbias, first_back.dbias);
    EXPECT_EQ(RunCase(*runner_, inference, {misaligned}).y, first_inference.y);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormRowsTest,
                         ::testing::Combine(::testing::ValuesIn(kShapes),
                                            ::testing::Values(kF32,
                                                              DTypePair{DType::kBF16, DType::kBF16},
                                                              DTypePair{DType::kF16, DType::kF32})),
                         [](const auto& named) {
                           return DTypePairName(std::get<1>(named.param)) +
                                  Name(std::get<0>(named.param));
                         });

class BatchNormRowsDataTest : public ::testing::TestWithParam<BatchNormShape> {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(BatchNormRowsDataTest, LargeMeansKeepSmallVariances) {
  const BatchNormShape shape = GetParam();
  BatchForwardCase forward = MakeForward(shape, kF32, BatchNormMode::kTraining);
  for (size_t i = 0; i < forward.x.size(); ++i) {
    const auto value = static_cast<int64_t>(i) / shape.channels;
    forward.x[i] = static_cast<float>(10000 + 0.001 * static_cast<double>(value % 1000));
  }
  RunAndCheck(*runner_, forward);
  BatchBackwardCase backward = MakeBackward(shape, kF32, BatchNormMode::kTraining);
  backward.x = forward.x;
  backward.statistics = SavedStatistics::kRecomputed;
  RunAndCheck(*runner_, backward);
}

TEST_P(BatchNormRowsDataTest, FarOutliersInTheFirstRowCostNothing) {
  const BatchNormShape shape = GetParam();
  BatchForwardCase forward = MakeForward(shape, kF32, BatchNormMode::kTraining);
  for (int64_t c = 0; c < shape.channels; ++c) forward.x[static_cast<size_t>(c)] = 1e4;
  RunAndCheck(*runner_, forward);
}

TEST_P(BatchNormRowsDataTest, SpreadsWhoseSquaresLeaveF32) {
  const BatchNormShape shape = GetParam();
  BatchForwardCase forward = MakeForward(shape, kF32, BatchNormMode::kTraining);
  const std::vector<double> plain = ToValues(DType::kF32, RunCase(*runner_, forward).rstd);
  for (size_t i = 0; i < forward.x.size(); ++i) {
    forward.x[i] = static_cast<float>(forward.x[i] * 1e20);
  }
  forward.running_mean.clear();
  forward.running_var.clear();
  const BatchForwardOutputs outputs = RunCase(*runner_, forward);
  ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
  const std::vector<double> y = ToValues(DType::kF32, outputs.y);
  const std::vector<double> rstd = ToValues(DType::kF32, outputs.rstd);
  for (size_t c = 0; c < rstd.size(); ++c) {  // eps is 1e-5, the variance about 4
    ASSERT_NEAR(rstd[c], plain[c] * 1e-20, 1e-5 * plain[c] * 1e-20) << c;
  }
  for (double value : y) ASSERT_LT(std::fabs(value), 30.0);
}

TEST_P(BatchNormRowsDataTest, NanAndInfinityStayInTheirChannels) {
  const BatchNormShape shape = GetParam();
  const BatchForwardCase clean = MakeForward(shape, kF32, BatchNormMode::kTraining);
  BatchForwardCase dirty = clean;
  const size_t channels = static_cast<size_t>(shape.channels);
  dirty.x[channels * 30 + 1] = std::nan("");
  dirty.x[2] = std::numeric_limits<double>::infinity();
  const std::vector<double> a = ToValues(DType::kF32, RunCase(*runner_, clean).y);
  const std::vector<double> b = ToValues(DType::kF32, RunCase(*runner_, dirty).y);
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t channel = i % channels;
    if (channel == 1 || channel == 2) {
      ASSERT_TRUE(std::isnan(b[i])) << i;
    } else {
      ASSERT_EQ(a[i], b[i]) << i;
    }
  }
}

TEST_P(BatchNormRowsDataTest, OutputsMayReplaceInputs) {
  const BatchNormShape shape = GetParam();
  const BatchForwardCase forward = MakeForward(shape, kF32, BatchNormMode::kTraining);
  std::vector<std::byte> x = ToBytes(DType::kF32, forward.x);
  std::vector<std::byte> weight = ToBytes(DType::kF32, forward.weight);
  std::vector<std::byte> bias = ToBytes(DType::kF32, forward.bias);
  BatchNormForwardArgs args;
  args.x = x.data();
  args.y = x.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.shape = shape;
  ASSERT_TRUE(runner_->Run(args).ok());
  EXPECT_EQ(x, RunCase(*runner_, forward).y);

  BatchBackwardCase backward = MakeBackward(shape, kF32, BatchNormMode::kTraining);
  backward.statistics = SavedStatistics::kRecomputed;
  const std::vector<std::byte> dx = RunCase(*runner_, backward).dx;
  for (bool replaces_dy : {true, false}) {
    SCOPED_TRACE(replaces_dy);
    x = ToBytes(DType::kF32, backward.x);
    std::vector<std::byte> dy = ToBytes(DType::kF32, backward.dy);
    BatchNormBackwardArgs gradient;
    gradient.dy = dy.data();
    gradient.x = x.data();
    gradient.dx = replaces_dy ? dy.data() : x.data();
    gradient.weight = weight.data();
    gradient.shape = shape;
    ASSERT_TRUE(runner_->Run(gradient).ok());
    EXPECT_EQ(replaces_dy ? dy : x, dx);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormRowsDataTest, ::testing::ValuesIn(kShapes),
                         [](const auto& named) { return Name(named.param); });

class BatchNormRowsChannelsTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(BatchNormRowsChannelsTest, EveryChannelCount) {
  for (int64_t channels = 1; channels <= 70; ++channels) {
    for (int64_t values : {2, 37, 500}) {
      SCOPED_TRACE(::testing::Message() << values << " values, " << channels << " channels");
      const BatchNormShape shape = {values, channels, 1, BatchNormLayout::kNhwc};
      for (BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
        RunAndCheck(*runner_, MakeForward(shape, GetParam(), mode));
        RunAndCheck(*runner_, MakeBackward(shape, GetParam(), mode));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BatchNormRowsChannelsTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
