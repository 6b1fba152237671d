// The 16-bit element types on the host, and their exact conversions one element at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace norm::internal {

/// IEEE 754 binary16.
struct Half {
  uint16_t bits;
};

/// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24 is exact in f32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t biased = exponent == 0x1F ? 0xFFu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

/// Rounds to nearest even; NaN stays NaN.
inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

/// Rounds to nearest even, subnormals included; overflow gives infinity, NaN stays NaN.
inline Half ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return {static_cast<uint16_t>(sign | 0x7E00u)};
  }
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded by the
    // addition itself.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  if (magnitude >= 0x47800000u) {
    return {static_cast<uint16_t>(sign | 0x7C00u)};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

inline double ToDouble(double value) { return value; }
template <typename T>
double ToDouble(T value) {
  return ToFloat(value);
}

inline void Assign(double& target, double value) { target = value; }
inline void Assign(float& target, double value) { target = static_cast<float>(value); }
inline void Assign(Half& target, double value) { target = ToHalf(static_cast<float>(value)); }
inline void Assign(BFloat16& target, double value) {
  target = ToBFloat16(static_cast<float>(value));
}

}  // namespace norm::internal
