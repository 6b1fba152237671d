#include "tests/reference/element_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace norm::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ElementCodecTest, DecodesKnownF16Patterns) {
  EXPECT_EQ(DecodeBits(Format::kF16, 0x3C00), 1.0);
  EXPECT_EQ(DecodeBits(Format::kF16, 0xC000), -2.0);
  EXPECT_EQ(DecodeBits(Format::kF16, 0x7BFF), 65504.0);
  EXPECT_EQ(DecodeBits(Format::kF16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(DecodeBits(Format::kF16, 0x0400), std::ldexp(1.0, -14));
  EXPECT_EQ(DecodeBits(Format::kF16, 0xFC00), -kInfinity);
  EXPECT_TRUE(std::isnan(DecodeBits(Format::kF16, 0x7C01)));
}

TEST(ElementCodecTest, DecodesEveryBf16PatternAsTheUpperHalfOfAFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float expected = std::bit_cast<float>(bits << 16);
    const double got = DecodeBits(Format::kBF16, bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, expected) << bits;
    }
  }
}

TEST(ElementCodecTest, EncodesEveryDecodedF16AndBf16PatternToItself) {
  for (Format format : {Format::kF16, Format::kBF16}) {
    for (uint64_t bits = 0; bits < 0x10000; ++bits) {
      const double value = DecodeBits(format, bits);
      if (!std::isnan(value)) {
        ASSERT_EQ(EncodeBits(format, value), bits);
      }
    }
  }
}

TEST(ElementCodecTest, RoundsTiesToEvenAndEverythingElseToNearest) {
  for (Format format : {Format::kF16, Format::kBF16}) {
    const uint64_t infinity = format == Format::kF16 ? 0x7C00 : 0x7F80;
    for (uint64_t bits = 0; bits + 1 < infinity; ++bits) {
      const double low = DecodeBits(format, bits);
      const double high = DecodeBits(format, bits + 1);
      const double middle = (low + high) / 2;
      const uint64_t even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(EncodeBits(format, middle), even);
      ASSERT_EQ(EncodeBits(format, std::nextafter(middle, 0.0)), bits);
      ASSERT_EQ(EncodeBits(format, std::nextafter(middle, kInfinity)), bits + 1);
    }
  }
}

TEST(ElementCodecTest, OverflowsToInfinityFromHalfAnUlpPastTheLargest) {
  EXPECT_EQ(RoundTo(Format::kF16, 65519.99), 65504.0);
  EXPECT_EQ(RoundTo(Format::kF16, 65520.0), kInfinity);
  EXPECT_EQ(RoundTo(Format::kF16, -1e300), -kInfinity);
  EXPECT_EQ(RoundTo(Format::kBF16, std::numeric_limits<float>::max()), kInfinity);
}

TEST(ElementCodecTest, RoundsToF32LikeAConversion) {
  for (double value : {0.1, 1e-40, -3.4e38, 16777217.0, 1e39, -0.0, 1.0 + 0x1p-24, 1e-46}) {
    const float expected = static_cast<float>(value);
    EXPECT_EQ(EncodeBits(Format::kF32, value), std::bit_cast<uint32_t>(expected)) << value;
  }
}

TEST(ElementCodecTest, UlpIsTheDistanceToTheNextValue) {
  EXPECT_EQ(Ulp(Format::kF16, 1.0), std::ldexp(1.0, -10));
  EXPECT_EQ(Ulp(Format::kF16, 0.0), std::ldexp(1.0, -24));
  EXPECT_EQ(Ulp(Format::kBF16, 300.0), 2.0);
  EXPECT_EQ(Ulp(Format::kF32, 1.5), std::ldexp(1.0, -23));
  EXPECT_EQ(Ulp(Format::kF64, 2.0), std::ldexp(1.0, -51));
}

TEST(ElementCodecTest, KeepsNanInEveryFormat) {
  for (Format format : {Format::kF32, Format::kF16, Format::kBF16, Format::kF64}) {
    EXPECT_TRUE(std::isnan(RoundTo(format, std::numeric_limits<double>::quiet_NaN())));
  }
}

}  // namespace
}  // namespace norm::reference
