// Element formats of tensors, decoded to double and encoded with one rounding to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace norm::reference {

enum class Format { kF32, kF16, kBF16, kF64 };

/// Bytes per element.
size_t FormatSize(Format format);

/// The value of the little-endian bit pattern `bits` (low bytes used).
double DecodeBits(Format format, uint64_t bits);
/// The bit pattern nearest to `value`, ties to even; past the largest finite value infinity; NaN
/// gives a quiet NaN.
uint64_t EncodeBits(Format format, double value);

std::vector<double> Decode(Format format, std::span<const std::byte> bytes);
std::vector<std::byte> Encode(Format format, std::span<const double> values);

/// `value` after one rounding to `format`.
double RoundTo(Format format, double value);

/// Distance between neighbours of `format` around `value` (of the binade that holds it); the
/// smallest subnormal for 0.
double Ulp(Format format, double value);

}  // namespace norm::reference
