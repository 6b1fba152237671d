#include "element_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "norm/client/tensor.h"

namespace norm::client {
namespace {

/// An IEEE-754 binary format of 16 bits.
struct Format {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  int max_exponent;
};
constexpr Format kF16{10, -14, 15};
constexpr Format kBf16{7, -126, 127};

uint16_t RoundTo(const Format& format, double value) {
  const int sign = std::signbit(value) ? 1 << 15 : 0;
  const int infinity = ((1 << 15) - 1) & ~((1 << format.mantissa_bits) - 1);
  if (std::isnan(value))
    return static_cast<uint16_t>(sign | infinity | (1 << (format.mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  int exponent = std::ilogb(magnitude);
  if (exponent < format.min_exponent) exponent = format.min_exponent;
  // The value in units of the last place: exact (a power-of-two scaling), then rounded to nearest
  // even by the default mode.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  if (exponent > format.max_exponent) return static_cast<uint16_t>(sign | infinity);
  // A mantissa that rounded up to the next power of two carries into the exponent field, up to
  // infinity.
  const int biased = (exponent - format.min_exponent) << format.mantissa_bits;
  const int bits = biased + static_cast<int>(units);
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : bits));
}

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

double ElementAt(DType dtype, const std::byte* bytes, int64_t index) {
  const std::byte* element = bytes + index * static_cast<int64_t>(DTypeSize(dtype));
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(Load<float>(element));
    case DType::kF64:
      return Load<double>(element);
    case DType::kF16:
      return F16ToDouble(Load<uint16_t>(element));
    case DType::kBF16:
      return Bf16ToDouble(Load<uint16_t>(element));
  }
  return 0;
}

template <typename T>
void Store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(T));
}

void SetElement(DType dtype, std::byte* bytes, int64_t index, double value) {
  std::byte* element = bytes + index * static_cast<int64_t>(DTypeSize(dtype));
  switch (dtype) {
    case DType::kF32:
      return Store(element, static_cast<float>(value));
    case DType::kF64:
      return Store(element, value);
    case DType::kF16:
      return Store(element, DoubleToF16(value));
    case DType::kBF16:
      return Store(element, DoubleToBf16(value));
  }
}

}  // namespace

double F16ToDouble(uint16_t bits) {
  const int mantissa = bits & 0x3ff;
  const int exponent = (bits >> 10) & 0x1f;
  double magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(mantissa + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double Bf16ToDouble(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

uint16_t DoubleToF16(double value) { return RoundTo(kF16, value); }
uint16_t DoubleToBf16(double value) { return RoundTo(kBf16, value); }

absl::StatusOr<Tensor> Cast(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  absl::StatusOr<Tensor> result = Tensor::Allocate(dtype, tensor.shape());
  if (!result.ok()) return result;
  const std::byte* source = tensor.bytes().data();
  std::byte* destination = result->mutable_bytes().data();
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    SetElement(dtype, destination, i, ElementAt(tensor.dtype(), source, i));
  }
  return result;
}

std::vector<double> ToDoubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    values[static_cast<size_t>(i)] = ElementAt(tensor.dtype(), tensor.bytes().data(), i);
  }
  return values;
}

}  // namespace norm::client
