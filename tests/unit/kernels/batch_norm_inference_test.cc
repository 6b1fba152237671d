// BatchNorm inference in every layout: both directions, weights that f32 products with rstd do not
// hold, bits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/batch_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

constexpr DTypePair kDTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF32}};

/// Whole planes, planes across accesses, whole tensors that are not whole accesses; small planes of
/// many images; granules of channels that are whole and not, more than a block has; one value.
constexpr BatchNormShape kShapes[] = {
    {3, 5, 64},  {7, 24, 49},  {2, 3, 4097}, {5, 1, 33},   {1, 1, 8},     {1, 2100, 9}, {4, 1, 1},
    {300, 8, 1}, {70, 136, 3}, {9, 520, 2},  {1030, 3, 1}, {1, 64, 2048}, {19, 40, 49}, {8, 16, 9},
};
constexpr BatchNormLayout kLayouts[] = {BatchNormLayout::kNchw, BatchNormLayout::kNhwc};

class BatchNormInferenceTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  BatchForwardCase Forward(const BatchNormShape& shape) const {
    BatchForwardCase problem;
    problem.shape = shape;
    problem.mode = BatchNormMode::kInference;
    problem.dtypes = GetParam();
    problem.x =
        MakeNormal(shape.batch * shape.channels * shape.spatial, 1.5, 2.0, GetParam().dtype, 141);
    problem.weight = MakeNormal(shape.channels, 1.0, 0.5, GetParam().weight_dtype, 142);
    problem.bias = MakeNormal(shape.channels, 0.0, 0.5, GetParam().weight_dtype, 143);
    problem.running_mean = MakeNormal(shape.channels, 1.0, 1.0, DType::kF32, 144);
    problem.running_var = MakeNormal(shape.channels, 4.0, 0.2, DType::kF32, 145);
    return problem;
  }
  BatchBackwardCase Backward(const BatchNormShape& shape) const {
    const BatchForwardCase forward = Forward(shape);
    BatchBackwardCase problem;
    problem.shape = shape;
    problem.mode = BatchNormMode::kInference;
    problem.dtypes = GetParam();
    problem.only_dx = true;
    problem.x = forward.x;
    problem.dy =
        MakeNormal(static_cast<int64_t>(forward.x.size()), 0.25, 1.0, GetParam().dtype, 146);
    problem.weight = forward.weight;
    problem.running_mean = forward.running_mean;
    problem.running_var = forward.running_var;
    return problem;
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

std::string Name(const BatchNormShape& shape) {
  return std::to_string(shape.batch) + "x" + std::to_string(shape.channels) + "x" +
         std::to_string(shape.spatial) +
         (shape.layout == BatchNormLayout::kNchw ? " nchw" : " nhwc");
}

TEST_P(BatchNormInferenceTest, BothDirectionsMatchTheReference) {
  for (BatchNormShape shape : kShapes) {
    for (BatchNormLayout layout : kLayouts) {
      shape.layout = layout;
      SCOPED_TRACE(Name(shape));
      BatchForwardCase forward = Forward(shape);
      RunAndCheck(*runner_, forward);
      forward.weight.clear();
      forward.bias.clear();
      RunAndCheck(*runner_, forward);
      RunAndCheck(*runner_, Backward(shape));
    }
  }
}

TEST_P(BatchNormInferenceTest, BitsDoNotDependOnAddressOrLayout) {
  for (BatchNormShape shape : kShapes) {
    shape.layout = BatchNormLayout::kNchw;
    SCOPED_TRACE(Name(shape));
    const BatchForwardCase forward = Forward(shape);
    const BatchBackwardCase backward = Backward(shape);
    const BatchForwardOutputs first = RunCase(*runner_, forward);
    const BatchBackwardOutputs first_back = RunCase(*runner_, backward);
    for (size_t misaligned : {1, 2, 4}) {
      SCOPED_TRACE(misaligned);
      const BatchForwardOutputs again = RunCase(*runner_, forward, {misaligned});
      EXPECT_EQ(again.y, first.y);
      EXPECT_EQ(again.rstd, first.rstd);
      EXPECT_EQ(RunCase(*runner_, backward, {misaligned}).dx, first_back.dx);
    }
    // Planes below one access take several passes.
    const int64_t plane_bytes = shape.spatial * static_cast<int64_t>(DTypeSize(GetParam().dtype));
    if (shape.spatial > 1 && plane_bytes < 16) continue;
    BatchForwardCase other = forward;
    other.x = ToOtherLayout(shape, forward.x);
    other.shape.layout = BatchNormLayout::kNhwc;
    const BatchForwardOutputs nhwc = RunCase(*runner_, other);
    EXPECT_EQ(nhwc.rstd, first.rstd);
    EXPECT_EQ(ToOtherLayout(shape, ToValues(forward.dtypes.dtype, first.y)),
              ToValues(forward.dtypes.dtype, nhwc.y));
  }
}

TEST_P(BatchNormInferenceTest, TallBlocksMatchTheReference) {
  const BatchNormShape shape = {102390, 64, 1};
  RunAndCheck(*runner_, Forward(shape));
  EXPECT_EQ(RunCase(*runner_, Forward(shape)).y, RunCase(*runner_, Forward(shape), {1}).y);
}

/// f32 holds weight and rstd, but not their product, or not all of its digits.
TEST_P(BatchNormInferenceTest, ExtremeWeightsChangeNoOtherChannel) {
  for (BatchNormShape shape :
       {BatchNormShape{7, 24, 49}, BatchNormShape{19, 24, 49}, BatchNormShape{3, 8, 640}}) {
    for (BatchNormLayout layout : kLayouts) {
      shape.layout = layout;
      SCOPED_TRACE(Name(shape));
      const BatchForwardCase plain = Forward(shape);
      BatchForwardCase extreme = plain;
      if (plain.dtypes.dtype != DType::kF16) extreme.weight[1] = 0x1p80;  // f16 holds no such y
      extreme.weight[5] = 0x1p-70;
      extreme.running_var[5] = 0x1p60;
      extreme.weight[6] = 0.0;
      RunAndCheck(*runner_, extreme);
      const DType dtype = plain.dtypes.dtype;
      const std::vector<double> a = ToValues(dtype, RunCase(*runner_, plain).y);
      const std::vector<double> b = ToValues(dtype, RunCase(*runner_, extreme).y);
      for (size_t i = 0; i < a.size(); ++i) {
        const size_t spatial = static_cast<size_t>(shape.spatial);
        const size_t place = layout == BatchNormLayout::kNchw ? i / spatial : i;
        const size_t channel = place % static_cast<size_t>(shape.channels);
        if (channel == 1 || channel == 5 || channel == 6) continue;
        ASSERT_EQ(a[i], b[i]) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BatchNormInferenceTest, ::testing::ValuesIn(kDTypes),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
