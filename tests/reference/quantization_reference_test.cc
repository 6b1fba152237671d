#include "tests/reference/quantization_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace norm::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr ByteFormat kF8 = ByteFormat::kF8E4M3;

struct KnownValue {
  double value;
  uint8_t code;
};

// Table 1 and 2 of arXiv:2209.05433, and powers and sums of powers of two written out by hand.
TEST(QuantizationReferenceTest, KnowsE4M3) {
  constexpr KnownValue kExact[] = {
      {0.0, 0x00},   {0x1p-9, 0x01}, {0x7p-9, 0x07}, {0x1p-6, 0x08}, {0x9p-9, 0x09}, {0.5, 0x30},
      {0.875, 0x36}, {1.0, 0x38},    {1.125, 0x39},  {1.875, 0x3F},  {2.0, 0x40},    {3.5, 0x46},
      {240.0, 0x77}, {256.0, 0x78},  {288.0, 0x79},  {416.0, 0x7D},  {448.0, 0x7E}};
  for (const KnownValue& known : kExact) {
    EXPECT_EQ(DecodeByte(kF8, known.code), known.value);
    EXPECT_EQ(EncodeByte(kF8, known.value), known.code) << known.value;
    EXPECT_EQ(EncodeByte(kF8, -known.value), known.code | 0x80) << known.value;
  }
  EXPECT_TRUE(std::isnan(DecodeByte(kF8, 0x7F)));
  EXPECT_TRUE(std::isnan(DecodeByte(kF8, 0xFF)));
}

TEST(QuantizationReferenceTest, RoundsE4M3ToTheNearestAndSaturates) {
  constexpr KnownValue kRounded[] = {
      {0x1p-10, 0x00},         // tie between 0 and 2^-9
      {0x1.000002p-10, 0x01},  // just past it
      {0x3p-10, 0x02},         // tie between 2^-9 and 2^-8
      {0x1.Ep-7, 0x08},        // tie between the largest subnormal and the smallest normal
      {0x1.DFFFFEp-7, 0x07},   // just below it
      {1.0625, 0x38},          // tie between 1 and 1.125
      {1.1875, 0x3A},          // tie between 1.125 and 1.25
      {1.9375, 0x40},          // tie between 1.875 and 2
      {432.0, 0x7E},           // tie between 416 and 448
      {431.999, 0x7D},        {463.999, 0x7E}, {464.0, 0x7E},
      {480.0, 0x7E},          {1e300, 0x7E},   {kInfinity, 0x7E}};
  for (const KnownValue& known : kRounded) {
    EXPECT_EQ(EncodeByte(kF8, known.value), known.code) << known.value;
    EXPECT_EQ(EncodeByte(kF8, -known.value), known.code | 0x80) << known.value;
  }
  EXPECT_EQ(EncodeByte(kF8, std::nan("")), 0x7F);
  EXPECT_EQ(EncodeByte(kF8, -std::nan("")), 0x7F);
}

TEST(QuantizationReferenceTest, E4M3HasEveryCodeOnceAndInOrder) {
  for (int code = 0; code < 0x7E; ++code) {
    const double low = DecodeByte(kF8, static_cast<uint8_t>(code));
    const double high = DecodeByte(kF8, static_cast<uint8_t>(code + 1));
    ASSERT_LT(low, high);
    ASSERT_EQ(EncodeByte(kF8, low), code);
    const double middle = (low + high) / 2;
    ASSERT_EQ(EncodeByte(kF8, middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(EncodeByte(kF8, std::nextafter(middle, 0.0)), code);
    ASSERT_EQ(EncodeByte(kF8, std::nextafter(middle, kInfinity)), code + 1);
  }
}

TEST(QuantizationReferenceTest, Int8IsSymmetricAndRoundsTiesToEven) {
  const auto encode = [](double value) { return EncodeByte(ByteFormat::kInt8, value); };
  EXPECT_EQ(encode(0.5), 0);
  EXPECT_EQ(encode(1.5), 2);
  EXPECT_EQ(encode(-0.5), 0);
  EXPECT_EQ(encode(-1.5), 0xFE);
  EXPECT_EQ(encode(-2.5), 0xFE);
  EXPECT_EQ(encode(126.5), 126);
  EXPECT_EQ(encode(127.5), 127);
  EXPECT_EQ(encode(1e9), 127);
  EXPECT_EQ(encode(-1e9), 0x81);
  EXPECT_EQ(encode(-kInfinity), 0x81);
  EXPECT_EQ(encode(std::nan("")), 0);
  for (int number = -127; number <= 127; ++number) {
    EXPECT_EQ(DecodeByte(ByteFormat::kInt8, encode(number)), number);
  }
}

TEST(QuantizationReferenceTest, ScalesRowsByTheirLargestMagnitude) {
  const std::vector<double> y = {1.0, -896.0, 3.0, 0.0, 0.0, -0.0, 1.0, kInfinity, 2.0};
  EXPECT_EQ(RowScale(kF8, y, 0, 3), 2.0);
  EXPECT_EQ(RowScale(kF8, y, 1, 3), 0.0);
  EXPECT_EQ(RowScale(kF8, y, 2, 3), kInfinity);
  EXPECT_TRUE(std::isnan(RowScale(kF8, {kInfinity, std::nan("")}, 0, 2)));
  EXPECT_EQ(RowScale(ByteFormat::kInt8, {254.0}, 0, 1), 2.0);
  EXPECT_EQ(RowScale(kF8, {448.0 * 0x1p-126}, 0, 1), 0x1p-126);
  EXPECT_EQ(RowScale(kF8, {448.0 * 0x1p-127}, 0, 1), 0.0);
  EXPECT_EQ(Quantize(kF8, 3.0, 2.0), 0x3C);
  EXPECT_EQ(Quantize(kF8, 3.0, 0.0), 0x00);
  EXPECT_EQ(Quantize(kF8, 3.0, kInfinity), 0x7F);
  EXPECT_EQ(Quantize(ByteFormat::kInt8, 3.0, kInfinity), 0);
}

}  // namespace
}  // namespace norm::reference
