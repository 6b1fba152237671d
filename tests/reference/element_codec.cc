#include "tests/reference/element_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace norm::reference {
namespace {

/// A binary floating-point layout: sign, exponent, fraction.
struct Layout {
  int fraction_bits;
  int exponent_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  /// Exponent of the smallest subnormal.
  constexpr int min_quantum_exponent() const { return 1 - bias() - fraction_bits; }
};

constexpr Layout LayoutOf(Format format) {
  switch (format) {
    case Format::kF32:
      return {23, 8};
    case Format::kF16:
      return {10, 5};
    case Format::kBF16:
      return {7, 8};
    case Format::kF64:
      return {52, 11};
  }
  return {};
}

constexpr int kMinNormalExponent = -1022;

/// 2^exponent, for normal results.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// Exponent of the last bit that `format` keeps of a finite `value`.
int QuantumExponent(const Layout& layout, double value) {
  const int biased = static_cast<int>(std::bit_cast<uint64_t>(value) >> 52) & 0x7FF;
  return std::max(biased - 1023 - layout.fraction_bits, layout.min_quantum_exponent());
}

/// The format as a constant: a codec of its own for each, whose loops the compiler unrolls.
template <Format kFormat>
double DecodeAs(uint64_t bits) {
  if constexpr (kFormat == Format::kF64) {
    return std::bit_cast<double>(bits);
  }
  constexpr Layout layout = LayoutOf(kFormat);
  const int width = 1 + layout.exponent_bits + layout.fraction_bits;
  const double sign = ((bits >> (width - 1)) & 1) != 0 ? -1.0 : 1.0;
  const int max_exponent = (1 << layout.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> layout.fraction_bits) & max_exponent;
  const uint64_t fraction = bits & ((uint64_t{1} << layout.fraction_bits) - 1);
  if (exponent == max_exponent) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * static_cast<double>(fraction) * PowerOfTwo(layout.min_quantum_exponent());
  }
  const double significand = static_cast<double>(fraction + (uint64_t{1} << layout.fraction_bits));
  return sign * significand * PowerOfTwo(exponent - layout.bias() - layout.fraction_bits);
}

template <Format kFormat>
uint64_t EncodeAs(double value) {
  if constexpr (kFormat == Format::kF64) {
    return std::bit_cast<uint64_t>(value);
  }
  constexpr Layout layout = LayoutOf(kFormat);
  const int width = 1 + layout.exponent_bits + layout.fraction_bits;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (width - 1) : 0;
  const uint64_t infinity = ((uint64_t{1} << layout.exponent_bits) - 1) << layout.fraction_bits;
  if (std::isnan(value)) {
    return sign | infinity | (uint64_t{1} << (layout.fraction_bits - 1));
  }
  if (std::isinf(value)) {
    return sign | infinity;
  }
  const int quantum = QuantumExponent(layout, value);
  // The scaling is exact. Adding 2^52 leaves no fraction bits: the sum is rounded, ties to even.
  const double units = (std::fabs(value) * PowerOfTwo(-quantum) + 0x1p52) - 0x1p52;
  // A carry into the next binade continues into the exponent field, since the fields are adjacent.
  const uint64_t above_subnormal = static_cast<uint64_t>(quantum - layout.min_quantum_exponent())
                                   << layout.fraction_bits;
  return sign | std::min(above_subnormal + static_cast<uint64_t>(units), infinity);
}

/// Returns visitor.template operator()<format>().
template <typename Visitor>
auto WithFormat(Format format, Visitor&& visitor) {
  switch (format) {
    case Format::kF32:
      return visitor.template operator()<Format::kF32>();
    case Format::kF16:
      return visitor.template operator()<Format::kF16>();
    case Format::kBF16:
      return visitor.template operator()<Format::kBF16>();
    case Format::kF64:
      break;
  }
  return visitor.template operator()<Format::kF64>();
}

constexpr size_t SizeOf(Format format) {
  const Layout layout = LayoutOf(format);
  return static_cast<size_t>(1 + layout.exponent_bits + layout.fraction_bits) / 8;
}

}  // namespace

size_t FormatSize(Format format) { return SizeOf(format); }

double DecodeBits(Format format, uint64_t bits) {
  return WithFormat(format, [&]<Format kFormat>() { return DecodeAs<kFormat>(bits); });
}

uint64_t EncodeBits(Format format, double value) {
  return WithFormat(format, [&]<Format kFormat>() { return EncodeAs<kFormat>(value); });
}

std::vector<double> Decode(Format format, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / FormatSize(format));
  WithFormat(format, [&]<Format kFormat>() {
    constexpr size_t kSize = SizeOf(kFormat);
    for (size_t i = 0; i < values.size(); ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * kSize, kSize);
      values[i] = DecodeAs<kFormat>(bits);
    }
  });
  return values;
}

std::vector<std::byte> Encode(Format format, std::span<const double> values) {
  std::vector<std::byte> bytes(values.size() * FormatSize(format));
  WithFormat(format, [&]<Format kFormat>() {
    constexpr size_t kSize = SizeOf(kFormat);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t bits = EncodeAs<kFormat>(values[i]);
      std::memcpy(bytes.data() + i * kSize, &bits, kSize);
    }
  });
  return bytes;
}

double RoundTo(Format format, double value) {
  return WithFormat(format,
                    [&]<Format kFormat>() { return DecodeAs<kFormat>(EncodeAs<kFormat>(value)); });
}

double Ulp(Format format, double value) {
  const int quantum = QuantumExponent(LayoutOf(format), value);
  return quantum >= kMinNormalExponent ? PowerOfTwo(quantum) : std::ldexp(1.0, quantum);
}

}  // namespace norm::reference
