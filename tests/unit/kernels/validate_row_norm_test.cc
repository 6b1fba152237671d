// Validate of the row ops: what is refused, and that the message names field, rule and values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"

namespace norm {
namespace {

using ::testing::HasSubstr;

void ExpectInvalid(const Status& status, const char* part) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(part));
}

/// Host memory with room for every tensor of the cases here: 4 x 8 elements of at most 8 bytes.
struct Memory {
  void* At(size_t tensor) { return bytes.data() + tensor * 256; }
  alignas(256) std::array<std::byte, 16 * 256> bytes = {};
};

class ValidateRowNormTest : public ::testing::Test {
 protected:
  ValidateRowNormTest() {
    rms_.x = memory_.At(0);
    rms_.y = memory_.At(1);
    rms_.rows = 4;
    rms_.hidden_size = 8;
    layer_.x = memory_.At(0);
    layer_.y = memory_.At(1);
    layer_.rows = 4;
    layer_.hidden_size = 8;
    rms_back_.dy = memory_.At(0);
    rms_back_.x = memory_.At(1);
    rms_back_.dx = memory_.At(2);
    rms_back_.rows = 4;
    rms_back_.hidden_size = 8;
    layer_back_.dy = memory_.At(0);
    layer_back_.x = memory_.At(1);
    layer_back_.dx = memory_.At(2);
    layer_back_.rows = 4;
    layer_back_.hidden_size = 8;
  }

  Memory memory_;
  RmsNormForwardArgs rms_;
  LayerNormForwardArgs layer_;
  RmsNormBackwardArgs rms_back_;
  LayerNormBackwardArgs layer_back_;
};

TEST_F(ValidateRowNormTest, AcceptsTheSmallestCalls) {
  EXPECT_TRUE(Validate(rms_).ok());
  EXPECT_TRUE(Validate(layer_).ok());
  EXPECT_TRUE(Validate(rms_back_).ok());
  EXPECT_TRUE(Validate(layer_back_).ok());
}

TEST_F(ValidateRowNormTest, AcceptsEverySupportedDTypePairAndNoOther) {
  for (int x = 0; x < kDTypeCount; ++x) {
    for (int weight = 0; weight < kDTypeCount; ++weight) {
      rms_.dtype = static_cast<DType>(x);
      rms_.weight_dtype = static_cast<DType>(weight);
      EXPECT_EQ(Validate(rms_).ok(), IsSupportedWeightDType(rms_.dtype, rms_.weight_dtype));
    }
  }
  rms_.dtype = DType::kF16;
  rms_.weight_dtype = DType::kBF16;
  ExpectInvalid(Validate(rms_), "weight_dtype bf16 must be f16 (the dtype of x) or f32");
  rms_.dtype = static_cast<DType>(9);
  ExpectInvalid(Validate(rms_), "dtype 9");
}

TEST_F(ValidateRowNormTest, RefusesBadSizes) {
  rms_.rows = -1;
  ExpectInvalid(Validate(rms_), "rows -1 must be >= 0");
  rms_.rows = 4;
  for (int64_t hidden_size : {int64_t{0}, int64_t{-8}}) {
    rms_.hidden_size = hidden_size;
    ExpectInvalid(Validate(rms_), "hidden_size");
  }
}

TEST_F(ValidateRowNormTest, RefusesSizesWhoseBytesOverflow) {
  layer_.rows = int64_t{1} << 40;
  layer_.hidden_size = int64_t{1} << 40;  // the product of elements wraps to 0
  ExpectInvalid(Validate(layer_), "exceeds 2^63 - 1 bytes");
  layer_.rows = int64_t{1} << 31;
  layer_.hidden_size = int64_t{1} << 31;  // 2^62 elements of 4 bytes
  ExpectInvalid(Validate(layer_), "2147483648 * 2147483648");
  layer_.rows = 0;
  layer_.hidden_size = std::numeric_limits<int64_t>::max();
  ExpectInvalid(Validate(layer_), "exceeds 2^63 - 1 bytes");
}

TEST_F(ValidateRowNormTest, RefusesMissingTensorsUnlessThereAreNoRows) {
  rms_.x = nullptr;
  ExpectInvalid(Validate(rms_), "x is null, but 32 elements are required");
  rms_.rows = 0;
  EXPECT_TRUE(Validate(rms_).ok());
  layer_.y = nullptr;
  ExpectInvalid(Validate(layer_), "y is null");
  rms_back_.dy = nullptr;
  ExpectInvalid(Validate(rms_back_), "dy is null");
  layer_back_.dx = nullptr;
  ExpectInvalid(Validate(layer_back_), "dx is null");
}

// Case 9.
TEST_F(ValidateRowNormTest, RefusesEpsThatIsNegativeOrNotFinite) {
  for (double eps : {-1e-300, -1.0, std::nan(""), HUGE_VAL}) {
    rms_.eps = layer_.eps = rms_back_.eps = layer_back_.eps = eps;
    ExpectInvalid(Validate(rms_), "must be finite and >= 0");
    ExpectInvalid(Validate(layer_), "must be finite and >= 0");
    ExpectInvalid(Validate(rms_back_), "must be finite and >= 0");
    ExpectInvalid(Validate(layer_back_), "must be finite and >= 0");
  }
  rms_.eps = 0.0;
  EXPECT_TRUE(Validate(rms_).ok());
}

TEST_F(ValidateRowNormTest, RefusesAWeightOffsetWithoutWeightOrNotFinite) {
  rms_.weight_offset = 1.0;
  ExpectInvalid(Validate(rms_), "weight_offset 1 needs a weight");
  rms_.weight = memory_.At(4);
  EXPECT_TRUE(Validate(rms_).ok());
  rms_.weight_offset = std::nan("");
  ExpectInvalid(Validate(rms_), "must be finite");
}

TEST_F(ValidateRowNormTest, WantsResidualAndItsSumTogether) {
  rms_.residual = memory_.At(4);
  ExpectInvalid(Validate(rms_), "residual is given, but residual_sum is null");
  rms_.residual_sum = memory_.At(5);
  EXPECT_TRUE(Validate(rms_).ok());
  rms_.residual = nullptr;
  ExpectInvalid(Validate(rms_), "residual is null, but residual_sum is given");
}

TEST_F(ValidateRowNormTest, WantsMeanAndRstdTogetherInLayerNormBackward) {
  layer_back_.mean = memory_.At(4);
  ExpectInvalid(Validate(layer_back_), "mean is given, but rstd is null");
  layer_back_.rstd = memory_.At(5);
  EXPECT_TRUE(Validate(layer_back_).ok());
  rms_back_.rstd = memory_.At(5);
  EXPECT_TRUE(Validate(rms_back_).ok());
}

TEST_F(ValidateRowNormTest, AllowsExactAliasingOfXAndResidual) {
  rms_.y = memory_.At(0);
  EXPECT_TRUE(Validate(rms_).ok());
  rms_.residual = memory_.At(2);
  rms_.residual_sum = memory_.At(2);
  EXPECT_TRUE(Validate(rms_).ok());
  for (size_t replaced : {0, 1, 3}) {
    layer_back_.dresidual_sum = memory_.At(3);
    layer_back_.dx = memory_.At(replaced);
    EXPECT_TRUE(Validate(layer_back_).ok());
  }
}

TEST_F(ValidateRowNormTest, RefusesPartialOverlapAndSharedOutputs) {
  rms_.y = static_cast<std::byte*>(memory_.At(0)) + 4;
  ExpectInvalid(Validate(rms_), "y [");
  ExpectInvalid(Validate(rms_), "overlaps x [");
  rms_.y = memory_.At(1);
  rms_.residual = memory_.At(2);
  rms_.residual_sum = memory_.At(1);
  ExpectInvalid(Validate(rms_), "residual_sum [");
  layer_.weight = memory_.At(1);
  ExpectInvalid(Validate(layer_), "overlaps weight [");
  layer_.weight = nullptr;
  layer_.rstd = static_cast<std::byte*>(memory_.At(0)) + 124;
  ExpectInvalid(Validate(layer_), "rstd [");
  layer_back_.dweight = memory_.At(5);
  layer_back_.dbias = static_cast<std::byte*>(memory_.At(5)) + 28;
  ExpectInvalid(Validate(layer_back_), "dbias [");
  layer_back_.dbias = static_cast<std::byte*>(memory_.At(5)) + 32;
  EXPECT_TRUE(Validate(layer_back_).ok());
}

TEST_F(ValidateRowNormTest, RefusesAddressesThatSplitAnElement) {
  rms_.x = static_cast<std::byte*>(memory_.At(0)) + 2;
  ExpectInvalid(Validate(rms_), "must be a multiple of its element's 4 bytes");
  rms_.dtype = DType::kF16;
  EXPECT_TRUE(Validate(rms_).ok());
}

TEST_F(ValidateRowNormTest, TakesEveryOutputFormatWithItsScale) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    rms_.dtype = rms_.weight_dtype = layer_.dtype = layer_.weight_dtype = dtype;
    rms_.output_format = layer_.output_format = OutputFormat::kF8E4M3;
    rms_.y_scale = layer_.y_scale = 0.25F;
    rms_.row_scale = layer_.row_scale = nullptr;
    EXPECT_TRUE(Validate(rms_).ok());
    EXPECT_TRUE(Validate(layer_).ok());
    rms_.y_scale = layer_.y_scale = 1.0F;
    rms_.row_scale = layer_.row_scale = memory_.At(7);
    for (OutputFormat format : {OutputFormat::kF8E4M3PerRow, OutputFormat::kInt8PerRow}) {
      rms_.output_format = layer_.output_format = format;
      EXPECT_TRUE(Validate(rms_).ok());
      EXPECT_TRUE(Validate(layer_).ok());
    }
  }
}

TEST_F(ValidateRowNormTest, RefusesUnknownOutputFormatsAndF64Quantized) {
  rms_.output_format = static_cast<OutputFormat>(kOutputFormatCount);
  ExpectInvalid(Validate(rms_), "output_format 4 is not one of same_as_input, f8e4m3");
  layer_.dtype = layer_.weight_dtype = DType::kF64;
  layer_.output_format = OutputFormat::kF8E4M3;
  ExpectInvalid(Validate(layer_),
                "output_format f8e4m3 needs x of f32, f16 or bf16, but dtype is f64");
  layer_.output_format = OutputFormat::kInt8PerRow;
  layer_.row_scale = memory_.At(7);
  ExpectInvalid(Validate(layer_), "output_format int8_per_row needs x of f32, f16 or bf16");
}

TEST_F(ValidateRowNormTest, RefusesStaticScalesOutOfRangeOrWithoutUse) {
  rms_.output_format = OutputFormat::kF8E4M3;
  for (float scale : {0.0F, -1.0F, std::nanf(""), HUGE_VALF, -HUGE_VALF, 0x1p-127F, 0x1.8p126F}) {
    rms_.y_scale = scale;
    ExpectInvalid(Validate(rms_), "must be in [2^-126, 2^126]");
  }
  for (float scale : {0x1p-126F, 0x1p126F}) {
    rms_.y_scale = scale;
    EXPECT_TRUE(Validate(rms_).ok());
  }
  rms_.y_scale = 2.0F;
  rms_.output_format = OutputFormat::kSameAsInput;
  ExpectInvalid(Validate(rms_),
                "y_scale 2 is given, but output_format is same_as_input, not f8e4m3");
  rms_.output_format = OutputFormat::kInt8PerRow;
  rms_.row_scale = memory_.At(7);
  ExpectInvalid(Validate(rms_), "y_scale 2 is given, but output_format is int8_per_row");
}

TEST_F(ValidateRowNormTest, WantsRowScaleWithPerRowFormatsOnly) {
  layer_.output_format = OutputFormat::kF8E4M3PerRow;
  ExpectInvalid(Validate(layer_), "row_scale is null, but 4 elements are required");
  layer_.rows = 0;
  EXPECT_TRUE(Validate(layer_).ok());
  layer_.rows = 4;
  layer_.row_scale = static_cast<std::byte*>(memory_.At(7)) + 2;
  ExpectInvalid(Validate(layer_), "row_scale address");
  layer_.row_scale = memory_.At(7);
  EXPECT_TRUE(Validate(layer_).ok());
  for (OutputFormat format : {OutputFormat::kSameAsInput, OutputFormat::kF8E4M3}) {
    layer_.output_format = format;
    ExpectInvalid(Validate(layer_), "row_scale is given, but output_format has no scale per row");
  }
}

TEST_F(ValidateRowNormTest, RefusesAQuantizedYInPlace) {
  rms_.output_format = OutputFormat::kF8E4M3;
  rms_.y = memory_.At(0);
  ExpectInvalid(Validate(rms_), "y [");
  ExpectInvalid(Validate(rms_), "32 bytes] overlaps x [");
  rms_.y = static_cast<std::byte*>(memory_.At(0)) + 128;
  EXPECT_TRUE(Validate(rms_).ok());  // 32 elements of 4 bytes end there
  rms_.residual = memory_.At(2);
  rms_.residual_sum = memory_.At(3);
  rms_.y = memory_.At(2);
  ExpectInvalid(Validate(rms_), "overlaps residual [");
  rms_.y = static_cast<std::byte*>(memory_.At(1)) + 1;  // bytes need no alignment
  rms_.residual_sum = memory_.At(2);
  EXPECT_TRUE(Validate(rms_).ok());
  rms_.output_format = OutputFormat::kInt8PerRow;
  rms_.row_scale = memory_.At(1);
  ExpectInvalid(Validate(rms_), "row_scale [");
}

TEST_F(ValidateRowNormTest, CpuBackwardRefusesAShortOrMisalignedWorkspace) {
  ThreadPool threads(1);
  layer_back_.dweight = memory_.At(5);
  const size_t needed = cpu::LayerNormBackwardWorkspaceBytes(layer_back_);
  ASSERT_GT(needed, 0u);
  alignas(256) std::array<std::byte, 4096> workspace;
  ASSERT_LE(needed + 8, workspace.size());
  EXPECT_TRUE(cpu::LayerNormBackward(layer_back_, {workspace.data(), needed}, threads).ok());
  ExpectInvalid(cpu::LayerNormBackward(layer_back_, {workspace.data(), needed - 1}, threads),
                "workspace of");
  ExpectInvalid(cpu::LayerNormBackward(layer_back_, {nullptr, needed}, threads), "workspace of 0");
  ExpectInvalid(cpu::LayerNormBackward(layer_back_, {workspace.data() + 8, needed}, threads),
                "must be a multiple of 256");
}

}  // namespace
}  // namespace norm
