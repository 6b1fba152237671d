#include "client/normctl/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace norm::normctl {
namespace {

using client::Tensor;
using client::TensorView;

Tensor Doubles(const std::vector<double>& values, std::vector<int64_t> shape) {
  return *Tensor::CopyOf(TensorView::Of(absl::MakeConstSpan(values), std::move(shape)));
}

Comparison Compared(const std::vector<double>& result, const std::vector<double>& golden,
                    const Tolerance& tolerance, std::vector<int64_t> shape,
                    const std::optional<Tensor>& scale = std::nullopt,
                    BatchNormLayout layout = BatchNormLayout::kNchw) {
  return *Compare(Doubles(result, shape), Doubles(golden, shape), tolerance, scale, layout);
}

TEST(CompareTest, AllowsErrorsRelativeToTheNamedScale) {
  const std::vector<double> golden = {0.0, 4.0, 100.0, 1.0};
  const std::vector<double> result = {0.5, 4.0, 100.0, 1.0};
  EXPECT_EQ(Compared(result, golden, {0.5, ToleranceScale::kValue}, {2, 2}).mismatches, 0);
  EXPECT_EQ(Compared(result, golden, {0.49, ToleranceScale::kValue}, {2, 2}).mismatches, 1);
  EXPECT_EQ(Compared(result, golden, {0.49, ToleranceScale::kElement}, {2, 2}).mismatches, 1);
  EXPECT_EQ(Compared(result, golden, {0.125, ToleranceScale::kRow}, {2, 2}).mismatches, 0);
  EXPECT_EQ(Compared(result, golden, {0.124, ToleranceScale::kRow}, {2, 2}).mismatches, 1);
  // [2, 2]: channel 0 is elements 0 and 2.
  EXPECT_EQ(Compared(result, golden, {0.005, ToleranceScale::kChannel}, {2, 2}).mismatches, 0);
  // [1, 2, 2] NCHW: channel 0 is elements 0 and 1.
  EXPECT_EQ(Compared(result, golden, {0.125, ToleranceScale::kChannel}, {1, 2, 2}).mismatches, 0);
  EXPECT_EQ(Compared(result, golden, {0.12, ToleranceScale::kChannel}, {1, 2, 2}).mismatches, 1);
  EXPECT_EQ(Compared(result, golden, {0.005, ToleranceScale::kChannel}, {1, 2, 2}, std::nullopt,
                     BatchNormLayout::kNhwc)
                .mismatches,
            0);
  const Tensor scale = Doubles({50, 1, 1, 1}, {4});
  EXPECT_EQ(Compared(result, golden, {0.01, ToleranceScale::kTensor}, {2, 2}, scale).mismatches, 0);
  EXPECT_EQ(Compared(result, golden, {0.009, ToleranceScale::kTensor}, {2, 2}, scale).mismatches,
            1);
}

TEST(CompareTest, ReportsTheLargestErrorAndTheFirstMismatch) {
  const Comparison comparison =
      Compared({1, 2.5, 3, 5}, {1, 2, 3, 4}, {0.1, ToleranceScale::kElement}, {4});
  EXPECT_EQ(comparison.max_error, 1.0);
  EXPECT_DOUBLE_EQ(comparison.max_used_share, 2.5);
  EXPECT_EQ(comparison.mismatches, 2);
  EXPECT_EQ(comparison.first_mismatch, 1);
}

TEST(CompareTest, CountsUnitsInTheLastPlaceOfTheDType) {
  const Tensor golden = *client::Cast(Doubles({1.0, 0.0}, {2}), DType::kBF16);
  const Tensor near = *client::Cast(Doubles({1.0 + 1.0 / 128, 0.0}, {2}), DType::kBF16);
  const Tensor far = *client::Cast(Doubles({1.0 + 2.0 / 128, 0.0}, {2}), DType::kBF16);
  const Tolerance one_ulp{0.0, ToleranceScale::kValue, 1.0};
  EXPECT_EQ(Compare(near, golden, one_ulp, std::nullopt, BatchNormLayout::kNchw)->mismatches, 0);
  EXPECT_EQ(Compare(far, golden, one_ulp, std::nullopt, BatchNormLayout::kNchw)->mismatches, 1);
}

TEST(CompareTest, TakesNanAndInfinityOnlyWhereTheGoldenHasThem) {
  const Tolerance loose{1e9, ToleranceScale::kValue};
  const double nan = std::nan("");
  EXPECT_EQ(Compared({nan, HUGE_VAL, -HUGE_VAL}, {nan, HUGE_VAL, -HUGE_VAL}, loose, {3}).mismatches,
            0);
  EXPECT_EQ(Compared({nan, 1, HUGE_VAL, -HUGE_VAL}, {1, nan, 1, HUGE_VAL}, loose, {4}).mismatches,
            4);
}

TEST(CompareTest, RefusesAnotherShapeOrDType) {
  const Tensor golden = Doubles({1, 2}, {2});
  EXPECT_FALSE(
      Compare(Doubles({1, 2}, {1, 2}), golden, {}, std::nullopt, BatchNormLayout::kNchw).ok());
  EXPECT_FALSE(
      Compare(*client::Cast(golden, DType::kF32), golden, {}, std::nullopt, BatchNormLayout::kNchw)
          .ok());
  EXPECT_FALSE(
      Compare(golden, golden, {1, ToleranceScale::kTensor}, std::nullopt, BatchNormLayout::kNchw)
          .ok());
}

}  // namespace
}  // namespace norm::normctl
