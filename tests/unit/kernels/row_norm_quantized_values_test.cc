// Codes of quantized outputs where y is known exactly: ties, saturation, scales, tiny and huge rows,
// infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/quantized_output.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using reference::ByteFormat;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr OutputFormat kFormats[] = {OutputFormat::kF8E4M3, OutputFormat::kF8E4M3PerRow,
                                     OutputFormat::kInt8PerRow};
constexpr OutputFormat kPerRowFormats[] = {OutputFormat::kF8E4M3PerRow, OutputFormat::kInt8PerRow};
constexpr DTypePair kF32Pair = {DType::kF32, DType::kF32};

std::vector<uint8_t> Codes(const RowForwardOutputs& out) {
  std::vector<uint8_t> codes(out.y.size());
  std::transform(out.y.begin(), out.y.end(), codes.begin(),
                 [](std::byte byte) { return std::to_integer<uint8_t>(byte); });
  return codes;
}

std::vector<double> Scales(const RowForwardOutputs& out) {
  return ToValues(DType::kF32, out.row_scale);
}

/// RMSNorm of ones without eps: y is the weight itself.
RowForwardCase WeightsAsY(OutputFormat format, const std::vector<double>& weight, DType dtype) {
  RowForwardCase problem;
  problem.output_format = format;
  problem.dtypes = {dtype, DType::kF32};
  problem.rows = 2;
  problem.hidden_size = static_cast<int64_t>(weight.size());
  problem.eps = 0.0;
  problem.x.assign(2 * weight.size(), 1.0);
  problem.weight = weight;
  return problem;
}

/// The codes of `y` in each of the two rows of WeightsAsY.
std::vector<uint8_t> ExpectedCodes(ByteFormat format, const std::vector<double>& y, double scale) {
  std::vector<uint8_t> codes;
  for (int row = 0; row < 2; ++row) {
    for (double value : y) {
      codes.push_back(reference::Quantize(format, value, scale));
    }
  }
  return codes;
}

/// Every tie between neighbours, the f32 numbers beside it, and the neighbours, of both signs.
std::vector<double> TiesOf(ByteFormat format) {
  std::vector<double> values;
  const int last = static_cast<int>(reference::EncodeByte(format, kInfinity));
  for (int code = 0; code < last; ++code) {
    const double low = reference::DecodeByte(format, static_cast<uint8_t>(code));
    const double high = reference::DecodeByte(format, static_cast<uint8_t>(code + 1));
    const float middle = static_cast<float>((low + high) / 2);
    for (double value :
         {low, static_cast<double>(std::nextafter(middle, 0.0F)), static_cast<double>(middle),
          static_cast<double>(std::nextafter(middle, 1e9F)), high}) {
      values.push_back(value);
      // weight + weight_offset is never -0.
      values.push_back(value == 0.0 ? value : -value);
    }
  }
  return values;
}

class QuantizedValuesTest : public ::testing::Test {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_F(QuantizedValuesTest, RoundTiesToEven) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (OutputFormat format : kFormats) {
      SCOPED_TRACE(OutputFormatName(format));
      // Holds the largest value of the format: the scale of a row is 1.
      const std::vector<double> weight = TiesOf(ByteFormatOf(format));
      const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, dtype));
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_EQ(Codes(out), ExpectedCodes(ByteFormatOf(format), weight, 1.0));
      for (double scale : Scales(out)) {
        EXPECT_EQ(scale, 1.0);
      }
    }
  }
}

TEST_F(QuantizedValuesTest, AreRoundedOnceFromF32) {
  // In bf16 the first is a tie, which would then round down.
  const std::vector<double> weight = {1.0625 + 0x1p-12, 1.0, 448.0};
  for (OutputFormat format : {OutputFormat::kF8E4M3, OutputFormat::kF8E4M3PerRow}) {
    const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kBF16));
    EXPECT_EQ(Codes(out), (std::vector<uint8_t>{0x39, 0x38, 0x7E, 0x39, 0x38, 0x7E}));
  }
}

TEST_F(QuantizedValuesTest, SaturateWithAStaticScaleAndKeepNan) {
  const std::vector<double> weight = {447.0,     449.0,      463.0, 465.0, 1e6, -1e6,  3e38,
                                      kInfinity, -kInfinity, kNan,  1e-10, 0.0, -1e-40};
  RowForwardCase problem = WeightsAsY(OutputFormat::kF8E4M3, weight, DType::kF32);
  const std::vector<uint8_t> row = {0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E,
                                    0x7E, 0xFE, 0x7F, 0x00, 0x00, 0x80};
  std::vector<uint8_t> expected = row;
  expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_EQ(Codes(RunCase(*runner_, problem)), expected);
  problem.y_scale = 4.0F;
  EXPECT_EQ(Codes(RunCase(*runner_, problem)), ExpectedCodes(ByteFormat::kF8E4M3, weight, 4.0));
}

TEST_F(QuantizedValuesTest, TakeStaticScalesToTheEndsOfTheirRange) {
  for (float scale : {0x1p-126F, 0x1p-100F, 0x1p100F, 0x1p126F}) {
    SCOPED_TRACE(scale);
    const double s = static_cast<double>(scale);
    const std::vector<double> weight = {s, -s, 1.5 * s, 3.0, 0.0};
    RowForwardCase problem = WeightsAsY(OutputFormat::kF8E4M3, weight, DType::kF32);
    problem.y_scale = scale;
    EXPECT_EQ(Codes(RunCase(*runner_, problem)), ExpectedCodes(ByteFormat::kF8E4M3, weight, s));
  }
}

TEST_F(QuantizedValuesTest, RowsFromTheSmallestToTheLargestNumbers) {
  // In units of the largest of the row.
  const std::vector<double> shares = {1.0, -0.5, 0.25, 3.0 / 7.0, 0.1, -0.01, 0.0, 0.97};
  for (OutputFormat format : kPerRowFormats) {
    for (double largest :
         {3.4e38, 1e30, 1e-30, 448.0 * 0x1p-126, 6e-36, 2e-36, 1e-38, 1e-40, 0x1p-149, 0.0}) {
      SCOPED_TRACE(OutputFormatName(format));
      SCOPED_TRACE(largest);
      std::vector<double> weight;
      for (double share : shares) {
        weight.push_back(reference::RoundTo(reference::Format::kF32, share * largest));
      }
      RunAndCheck(*runner_, WeightsAsY(format, weight, DType::kF32));
      const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kF32));
      const ByteFormat bytes = ByteFormatOf(format);
      const double scale =
          reference::RowScale(bytes, weight, 0, static_cast<int64_t>(weight.size()));
      EXPECT_EQ(scale == 0.0, largest < reference::LargestValue(bytes) * 0x1p-126);
      EXPECT_EQ(Scales(out), (std::vector<double>{scale, scale}));
      const uint8_t first = reference::EncodeByte(bytes, scale == 0.0 ? 0.0 : kInfinity);
      EXPECT_EQ(Codes(out)[0], first);
    }
  }
}

TEST_F(QuantizedValuesTest, RowsWithAnInfiniteYHaveAnInfiniteScale) {
  for (OutputFormat format : kPerRowFormats) {
    const std::vector<double> weight = {1.0, kInfinity, -2.0};
    const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kF32));
    const uint8_t nan = format == OutputFormat::kF8E4M3PerRow ? 0x7F : 0;
    EXPECT_EQ(Codes(out), std::vector<uint8_t>(6, nan));
    EXPECT_EQ(Scales(out), (std::vector<double>{kInfinity, kInfinity}));
  }
}

TEST_F(QuantizedValuesTest, NoRowsWriteNothing) {
  for (OutputFormat format : kFormats) {
    RowForwardCase problem;
    problem.hidden_size = 8;
    problem.dtypes = kF32Pair;
    problem.output_format = format;
    EXPECT_TRUE(RunCase(*runner_, problem).status.ok());
  }
}

}  // namespace
}  // namespace norm::testing
