// BatchNorm kernels that keep channels on the chip: every division of a tensor over blocks, planes
// of whole and of broken 16-byte accesses, and values that f32 cannot square.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/batch_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

/// A channel over all blocks; more channels than groups, several rounds of them; planes of a few
/// bytes, whose last item holds fewer channels; and shapes that several passes take.
constexpr BatchNormShape kShapes[] = {
    {3, 1, 40000}, {1, 2, 70000},  {2, 300, 640},  {5, 150, 1568}, {64, 700, 16},
    {17, 150, 49}, {130, 40, 196}, {129, 1028, 4}, {6, 270, 8},    {33, 13, 48},
    {7, 5, 1000},  {200, 3, 25},   {2, 9, 4112},   {40, 133, 128}, {9, 24, 12},
};

class CudaBatchNormResidentTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  static BatchForwardCase MakeForward(const BatchNormShape& shape, double mean = 1.5,
                                      double deviation = 2.0) {
    BatchForwardCase problem;
    problem.shape = shape;
    problem.dtypes = GetParam();
    problem.x = MakeNormal(shape.batch * shape.channels * shape.spatial, mean, deviation,
                           GetParam().dtype, 51);
    problem.weight = MakeNormal(shape.channels, 1.0, 0.5, GetParam().weight_dtype, 52);
    problem.bias = MakeNormal(shape.channels, 0.0, 0.5, GetParam().weight_dtype, 53);
    problem.running_mean = MakeNormal(shape.channels, 1.0, 1.0, DType::kF32, 54);
    problem.running_var = MakeNormal(shape.channels, 4.0, 0.2, DType::kF32, 55);
    return problem;
  }
  static BatchBackwardCase MakeBackward(const BatchForwardCase& forward) {
    BatchBackwardCase problem;
    problem.shape = forward.shape;
    problem.dtypes = forward.dtypes;
    problem.x = forward.x;
    problem.dy =
        MakeNormal(static_cast<int64_t>(forward.x.size()), 0.25, 1.0, forward.dtypes.dtype, 56);
    problem.weight = forward.weight;
    return problem;
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

std::string Name(const BatchNormShape& shape) {
  return std::to_string(shape.batch) + "x" + std::to_string(shape.channels) + "x" +
         std::to_string(shape.spatial);
}

TEST_P(CudaBatchNormResidentTest, EveryDivisionMatchesTheReference) {
  for (const BatchNormShape& shape : kShapes) {
    SCOPED_TRACE(Name(shape));
    BatchForwardCase forward = MakeForward(shape);
    RunAndCheck(*runner_, forward);
    BatchBackwardCase backward = MakeBackward(forward);
    RunAndCheck(*runner_, backward);
    backward.statistics = SavedStatistics::kRecomputed;
    RunAndCheck(*runner_, backward);
    forward.mode = BatchNormMode::kInference;
    RunAndCheck(*runner_, forward);
  }
}

TEST_P(CudaBatchNormResidentTest, EveryPlaneSizeMatchesTheReference) {
  for (int64_t spatial = 1; spatial <= 50; ++spatial) {
    for (int64_t channels : {3, 8}) {
      const BatchNormShape shape = {37, channels, spatial};
      SCOPED_TRACE(Name(shape));
      BatchForwardCase forward = MakeForward(shape);
      RunAndCheck(*runner_, forward);
      RunAndCheck(*runner_, MakeBackward(forward));
      forward.mode = BatchNormMode::kInference;
      RunAndCheck(*runner_, forward);
    }
  }
}

TEST_P(CudaBatchNormResidentTest, LargeMeansDoNotCostTheVariance) {
  for (const BatchNormShape& shape : kShapes) {
    SCOPED_TRACE(Name(shape));
    const BatchForwardCase forward = MakeForward(shape, 1000.0, 0.5);
    RunAndCheck(*runner_, forward);
    RunAndCheck(*runner_, MakeBackward(forward));
  }
}

TEST_P(CudaBatchNormResidentTest, BitsDependOnNeitherAddressNorRun) {
  for (const BatchNormShape& shape : kShapes) {
    SCOPED_TRACE(Name(shape));
    BatchForwardCase forward = MakeForward(shape);
    const BatchBackwardCase backward = MakeBackward(forward);
    const BatchForwardOutputs first = RunCase(*runner_, forward);
    const BatchBackwardOutputs first_back = RunCase(*runner_, backward);
    forward.mode = BatchNormMode::kInference;
    const BatchForwardOutputs first_inference = RunCase(*runner_, forward);
    for (size_t misaligned : {0, 1, 3, 4}) {
      SCOPED_TRACE(misaligned);
      EXPECT_EQ(RunCase(*runner_, forward, {misaligned}).y, first_inference.y);
      forward.mode = BatchNormMode::kTraining;
      const BatchForwardOutputs again = RunCase(*runner_, forward, {misaligned});
      forward.mode = BatchNormMode::kInference;
      EXPECT_EQ(again.y, first.y);
      EXPECT_EQ(again.mean, first.mean);
      EXPECT_EQ(again.rstd, first.rstd);
      EXPECT_EQ(again.new_running_var, first.new_running_var);
      const BatchBackwardOutputs again_back = RunCase(*runner_, backward, {misaligned});
      EXPECT_EQ(again_back.dx, first_back.dx);
      EXPECT_EQ(again_back.dweight, first_back.dweight);
      EXPECT_EQ(again_back.dbias, first_back.dbias);
    }
  }
}

TEST_P(CudaBatchNormResidentTest, NanAndInfinityStayInTheirChannel) {
  for (const BatchNormShape& shape : kShapes) {
    if (shape.channels < 3) continue;
    SCOPED_TRACE(Name(shape));
    const BatchForwardCase clean = MakeForward(shape);
    BatchForwardCase dirty = clean;
    const auto at = static_cast<size_t>(shape.spatial + shape.spatial / 2);  // channel 1
    dirty.x[at] = std::nan("");
    dirty.x[static_cast<size_t>(2 * shape.spatial)] = std::numeric_limits<double>::infinity();
    const DType dtype = GetParam().dtype;
    const std::vector<double> a = ToValues(dtype, RunCase(*runner_, clean).y);
    const std::vector<double> b = ToValues(dtype, RunCase(*runner_, dirty).y);
    for (size_t i = 0; i < a.size(); ++i) {
      const auto channel = static_cast<int64_t>(i) / shape.spatial % shape.channels;
      if (channel == 1 || channel == 2) {
        ASSERT_TRUE(std::isnan(b[i])) << i;
      } else {
        ASSERT_EQ(a[i], b[i]) << i;
      }
    }
  }
}

TEST_P(CudaBatchNormResidentTest, OutputsMayReplaceInputs) {
  for (const BatchNormShape& shape : kShapes) {
    SCOPED_TRACE(Name(shape));
    const DType dtype = GetParam().dtype;
    const BatchForwardCase forward = MakeForward(shape);
    BatchForwardCase plain = forward;
    plain.weight.clear();
    plain.bias.clear();
    plain.running_mean.clear();
    plain.running_var.clear();
    const std::vector<std::byte> y = RunCase(*runner_, plain).y;
    std::vector<std::byte> x = ToBytes(dtype, forward.x);
    BatchNormForwardArgs args;
    args.x = x.data();
    args.y = x.data();
    args.shape = shape;
    args.dtype = dtype;
    args.weight_dtype = GetParam().weight_dtype;
    ASSERT_TRUE(runner_->Run(args).ok());
    EXPECT_EQ(x, y);

    BatchBackwardCase backward = MakeBackward(plain);
    backward.statistics = SavedStatistics::kRecomputed;
    const std::vector<std::byte> dx = RunCase(*runner_, backward).dx;
    for (bool replaces_x : {true, false}) {
      std::vector<std::byte> inputs[] = {ToBytes(dtype, backward.x), ToBytes(dtype, backward.dy)};
      BatchNormBackwardArgs back;
      back.x = inputs[0].data();
      back.dy = inputs[1].data();
      back.dx = inputs[replaces_x ? 0 : 1].data();
      back.shape = shape;
      back.dtype = dtype;
      back.weight_dtype = GetParam().weight_dtype;
      ASSERT_TRUE(runner_->Run(back).ok());
      EXPECT_EQ(inputs[replaces_x ? 0 : 1], dx);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaBatchNormResidentTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kBF16, DType::kF32},
                                           DTypePair{DType::kF16, DType::kF16}),
                         [](const auto& named) { return DTypePairName(named.param); });

TEST(CudaBatchNormExtremesTest, HugeAndTinyChannelsMatchTheReference) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (double scale : {1e37, 3e30, 1e19, 1e-25, 1e-30}) {
      for (const BatchNormShape& shape : {BatchNormShape{3, 5, 4096}, BatchNormShape{16, 40, 49},
                                          BatchNormShape{50, 7, 16}, BatchNormShape{20, 6, 33}}) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(dtype) << " " << scale << " " << Name(shape));
        BatchForwardCase problem;
        problem.shape = shape;
        problem.dtypes = {dtype, DType::kF32};
        problem.eps = 0.0;
        problem.x = MakeNormal(shape.batch * shape.channels * shape.spatial, 0.0, scale, dtype, 57);
        RunAndCheck(*runner, problem);
        problem.weight.assign(static_cast<size_t>(shape.channels), 3.0);
        problem.bias.assign(static_cast<size_t>(shape.channels), -1.0);
        RunAndCheck(*runner, problem);
      }
    }
  }
}

}  // namespace
}  // namespace norm::testing
