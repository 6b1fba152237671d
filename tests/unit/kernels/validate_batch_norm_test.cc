// Validate of BatchNorm: what is refused, and that the message names field, rule and values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "norm/kernels/batch_norm.h"

namespace norm {
namespace {

using ::testing::HasSubstr;

void ExpectInvalid(const Status& status, const char* part) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(part));
}

class ValidateBatchNormTest : public ::testing::Test {
 protected:
  ValidateBatchNormTest() {
    forward_.x = At(0);
    forward_.y = At(1);
    forward_.shape = {2, 3, 4, BatchNormLayout::kNchw};
    inference_ = forward_;
    inference_.mode = BatchNormMode::kInference;
    inference_.running_mean = At(2);
    inference_.running_var = At(3);
    backward_.dy = At(0);
    backward_.x = At(1);
    backward_.dx = At(2);
    backward_.shape = forward_.shape;
    inference_backward_ = backward_;
    inference_backward_.mode = BatchNormMode::kInference;
    inference_backward_.mean = At(3);
    inference_backward_.running_var = At(4);
  }

  std::byte* At(size_t tensor) { return bytes_.data() + tensor * 256; }

  alignas(256) std::array<std::byte, 16 * 256> bytes_ = {};
  BatchNormForwardArgs forward_;
  BatchNormForwardArgs inference_;
  BatchNormBackwardArgs backward_;
  BatchNormBackwardArgs inference_backward_;
};

TEST_F(ValidateBatchNormTest, AcceptsTheSmallestCalls) {
  EXPECT_TRUE(Validate(forward_).ok());
  EXPECT_TRUE(Validate(inference_).ok());
  EXPECT_TRUE(Validate(backward_).ok());
  EXPECT_TRUE(Validate(inference_backward_).ok());
}

TEST_F(ValidateBatchNormTest, RefusesBadSizes) {
  forward_.shape.channels = 0;
  ExpectInvalid(Validate(forward_), "channels 0 must be >= 1");
  forward_.shape.channels = -3;
  ExpectInvalid(Validate(forward_), "channels -3 must be >= 1");
  forward_.shape = {-2, 3, -4, BatchNormLayout::kNchw};  // the product is positive
  ExpectInvalid(Validate(forward_), "batch -2 must be >= 0");
  forward_.shape = {2, 3, -4, BatchNormLayout::kNchw};
  ExpectInvalid(Validate(forward_), "spatial -4 must be >= 0");
  forward_.shape = {int64_t{1} << 30, 1 << 20, 1 << 20, BatchNormLayout::kNchw};
  ExpectInvalid(Validate(forward_), "exceeds 2^63 - 1 bytes");
}

// Case 26.
TEST_F(ValidateBatchNormTest, TrainingWantsTwoValuesPerChannelUnlessEmpty) {
  forward_.shape = {1, 4, 1, BatchNormLayout::kNchw};
  ExpectInvalid(Validate(forward_), "at least 2 values per channel");
  backward_.shape = forward_.shape;
  ExpectInvalid(Validate(backward_), "at least 2 values per channel");
  inference_.shape = forward_.shape;
  EXPECT_TRUE(Validate(inference_).ok());
  forward_.shape = {1, 4, 2, BatchNormLayout::kNchw};
  EXPECT_TRUE(Validate(forward_).ok());
  forward_.shape = {0, 4, 1, BatchNormLayout::kNchw};
  forward_.x = nullptr;
  forward_.y = nullptr;
  EXPECT_TRUE(Validate(forward_).ok());
}

TEST_F(ValidateBatchNormTest, RefusesBadEpsAndMomentum) {
  for (double eps : {-1.0, std::nan(""), HUGE_VAL}) {
    forward_.eps = backward_.eps = eps;
    ExpectInvalid(Validate(forward_), "eps");
    ExpectInvalid(Validate(backward_), "eps");
  }
  forward_.eps = 0.0;
  for (double momentum : {-0.1, 1.1, std::nan("")}) {
    forward_.momentum = momentum;
    ExpectInvalid(Validate(forward_), "must be in [0, 1]");
  }
  for (double momentum : {0.0, 1.0}) {
    forward_.momentum = momentum;
    EXPECT_TRUE(Validate(forward_).ok());
  }
}

TEST_F(ValidateBatchNormTest, TrainingWantsRunningStatisticsAllOrNone) {
  forward_.running_mean = At(2);
  ExpectInvalid(Validate(forward_), "running_mean is given, but running_var is null");
  forward_.running_var = At(3);
  ExpectInvalid(Validate(forward_), "running_mean is given, but new_running_mean is null");
  forward_.new_running_mean = At(4);
  ExpectInvalid(Validate(forward_), "running_var is given, but new_running_var is null");
  forward_.new_running_var = At(5);
  EXPECT_TRUE(Validate(forward_).ok());
  forward_.running_mean = nullptr;
  forward_.running_var = nullptr;
  ExpectInvalid(Validate(forward_), "running_mean is null, but new_running_mean is given");
}

TEST_F(ValidateBatchNormTest, InferenceWantsRunningStatisticsAndGivesNoBatchOnes) {
  inference_.running_mean = nullptr;
  ExpectInvalid(Validate(inference_), "running_mean is null, but 3 elements are required");
  inference_.running_mean = At(2);
  inference_.running_var = nullptr;
  ExpectInvalid(Validate(inference_), "running_var is null");
  inference_.running_var = At(3);
  inference_.mean = At(4);
  ExpectInvalid(Validate(inference_), "mean is given, but inference");
  inference_.mean = nullptr;
  inference_.new_running_mean = At(5);
  ExpectInvalid(Validate(inference_), "new_running_mean is given, but inference");
}

TEST_F(ValidateBatchNormTest, BackwardWantsTheStatisticsOfItsMode) {
  backward_.mean = At(5);
  ExpectInvalid(Validate(backward_), "mean is given, but rstd is null");
  backward_.rstd = At(6);
  EXPECT_TRUE(Validate(backward_).ok());
  backward_.running_var = At(7);
  ExpectInvalid(Validate(backward_), "running_var is given, but training");
  inference_backward_.rstd = At(6);
  ExpectInvalid(Validate(inference_backward_), "rstd is given, but inference");
  inference_backward_.rstd = nullptr;
  inference_backward_.running_var = nullptr;
  ExpectInvalid(Validate(inference_backward_), "running_var is null");
  inference_backward_.mean = nullptr;
  ExpectInvalid(Validate(inference_backward_), "mean is null");
}

TEST_F(ValidateBatchNormTest, AllowsOnlyTheDocumentedAliasing) {
  forward_.y = At(0);
  EXPECT_TRUE(Validate(forward_).ok());
  forward_.running_mean = At(2);
  forward_.running_var = At(3);
  forward_.new_running_mean = At(2);
  forward_.new_running_var = At(3);
  EXPECT_TRUE(Validate(forward_).ok());
  forward_.new_running_mean = At(3);
  forward_.new_running_var = At(2);
  ExpectInvalid(Validate(forward_), "overlaps");
  backward_.dx = At(0);
  EXPECT_TRUE(Validate(backward_).ok());
  backward_.dx = At(1) + 4;
  ExpectInvalid(Validate(backward_), "overlaps x");
}

TEST_F(ValidateBatchNormTest, SegmentsAgreeOnAllButTheirBatch) {
  std::vector<BatchNormForwardArgs> segments(3, forward_);
  EXPECT_TRUE(ValidateSegments(std::span<const BatchNormForwardArgs>()).ok());
  segments[1].shape.batch += 1;
  segments[1].eps = 1.0;
  EXPECT_TRUE(ValidateSegments(segments).ok());
  segments[2].eps = -1.0;
  ExpectInvalid(ValidateSegments(segments), "segment 2: eps");
  segments[2] = forward_;
  segments[2].shape.channels += 1;
  ExpectInvalid(ValidateSegments(segments), "segment 2: channels");
  segments[2] = forward_;
  segments[2].shape.layout = BatchNormLayout::kNhwc;
  ExpectInvalid(ValidateSegments(segments), "segment 2: layout NHWC differs from NCHW");

  std::vector<BatchNormBackwardArgs> backward = {backward_, inference_backward_};
  ExpectInvalid(ValidateSegments(backward),
                "segment 1: mode inference differs from training of segment 0");
}

}  // namespace
}  // namespace norm
