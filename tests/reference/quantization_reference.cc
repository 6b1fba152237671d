#include "tests/reference/quantization_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/element_codec.h"

namespace norm::reference {
namespace {

constexpr int kBias = 7;
constexpr int kFractionBits = 3;
constexpr uint8_t kF8Nan = 0x7F;

/// `value` to the nearest integer, ties to even, for |value| < 2^51.
double NearestEven(double value) {
  const double below = std::floor(value);
  const double left = value - below;
  if (left != 0.5) {
    return left < 0.5 ? below : below + 1.0;
  }
  return std::fmod(below, 2.0) == 0.0 ? below : below + 1.0;
}

}  // namespace

double LargestValue(ByteFormat format) { return format == ByteFormat::kF8E4M3 ? 448.0 : 127.0; }

double DecodeByte(ByteFormat format, uint8_t code) {
  if (format == ByteFormat::kInt8) {
    return code < 128 ? code : code - 256.0;
  }
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> kFractionBits) & 0xF;
  const int fraction = code & 0x7;
  if (exponent == 0xF && fraction == 0x7) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - kBias - kFractionBits);
  }
  return sign * std::ldexp(8 + fraction, exponent - kBias - kFractionBits);
}

uint8_t EncodeByte(ByteFormat format, double value) {
  if (std::isnan(value)) {
    return format == ByteFormat::kF8E4M3 ? kF8Nan : 0;
  }
  const double largest = LargestValue(format);
  const double clamped = std::clamp(value, -largest, largest);
  if (format == ByteFormat::kInt8) {
    const int number = static_cast<int>(NearestEven(clamped));
    return static_cast<uint8_t>(number < 0 ? number + 256 : number);
  }
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(clamped);
  // The binade [2^exponent, 2^(exponent + 1)) has steps of 2^(exponent - 3); all below 2^-6 has
  // those of 2^-9.
  const int smallest = 1 - kBias;
  const int exponent = magnitude == 0.0 ? smallest : std::max(std::ilogb(magnitude), smallest);
  const double units = NearestEven(std::ldexp(magnitude, kFractionBits - exponent));
  // Codes count upwards through binades: 8 units are the first code of the next one.
  return static_cast<uint8_t>(sign | (static_cast<int>(units) + 8 * (exponent - smallest)));
}

double RowScale(ByteFormat format, const std::vector<double>& y, int64_t row, int64_t hidden_size) {
  double largest = 0.0;
  const auto begin = y.begin() + static_cast<std::ptrdiff_t>(row) * hidden_size;
  for (auto value = begin; value != begin + hidden_size; ++value) {
    if (std::isnan(*value)) {
      return *value;
    }
    largest = std::max(largest, RoundTo(Format::kF32, std::fabs(*value)));
  }
  const double scale = RoundTo(Format::kF32, largest / LargestValue(format));
  return scale < 0x1p-126 ? 0.0 : scale;
}

uint8_t Quantize(ByteFormat format, double y, double scale) {
  if (!std::isfinite(scale)) {
    return EncodeByte(format, std::numeric_limits<double>::quiet_NaN());
  }
  return EncodeByte(format, scale == 0.0 ? 0.0 : y / scale);
}

}  // namespace norm::reference
