#include "tests/support/tensor_data.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace norm::testing {
namespace {

/// splitmix64: the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  /// In (0, 1).
  double Unit() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (static_cast<double>(z >> 11) + 0.5) * 0x1p-53;
  }
  /// Box and Muller.
  double Normal() {
    const double radius = std::sqrt(-2.0 * std::log(Unit()));
    return radius * std::cos(2.0 * std::numbers::pi * Unit());
  }

 private:
  uint64_t state_;
};

double SmallestNormal(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-14;
    case DType::kF32:
    case DType::kBF16:
      return 0x1p-126;
    case DType::kF64:
      return 0x1p-500;  // squares of true f64 subnormals are zero in f64, which the contract allows
  }
  return 0.0;
}

double Element(DataKind kind, DType dtype, Random& random, double row_value) {
  switch (kind) {
    case DataKind::kUniform:
      return 2.0 * random.Unit() - 1.0;
    case DataKind::kNormal:
    case DataKind::kInfAndNan:
      return random.Normal();
    case DataKind::kLargeMean: {
      const bool wide = dtype == DType::kF32 || dtype == DType::kF64;
      return wide ? 10000.0 + 0.01 * random.Normal() : 100.0 + 2.0 * random.Normal();
    }
    case DataKind::kConstantRows:
      return row_value;
    case DataKind::kSubnormal:
      return random.Normal() * SmallestNormal(dtype);
    case DataKind::kSumsPastF16:
      return 30000.0 + 5000.0 * random.Normal();
  }
  return 0.0;
}

}  // namespace

reference::Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return reference::Format::kF32;
    case DType::kF16:
      return reference::Format::kF16;
    case DType::kBF16:
      return reference::Format::kBF16;
    case DType::kF64:
      return reference::Format::kF64;
  }
  return reference::Format::kF64;
}

std::string DataKindName(DataKind kind) {
  switch (kind) {
    case DataKind::kUniform:
      return "Uniform";
    case DataKind::kNormal:
      return "Normal";
    case DataKind::kLargeMean:
      return "LargeMean";
    case DataKind::kConstantRows:
      return "ConstantRows";
    case DataKind::kSubnormal:
      return "Subnormal";
    case DataKind::kInfAndNan:
      return "InfAndNan";
    case DataKind::kSumsPastF16:
      return "SumsPastF16";
  }
  return "Unknown";
}

std::vector<double> MakeData(DataKind kind, int64_t rows, int64_t columns, DType dtype,
                             uint64_t seed) {
  Random random(seed);
  const reference::Format format = FormatOf(dtype);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    const double row_value = 10.0 * random.Normal();
    for (int64_t column = 0; column < columns; ++column) {
      values.push_back(reference::RoundTo(format, Element(kind, dtype, random, row_value)));
    }
  }
  if (kind == DataKind::kInfAndNan) {
    if (rows > 1) {
      values[static_cast<size_t>(columns + columns / 2)] = std::numeric_limits<double>::infinity();
    }
    if (rows > 2) {
      values[static_cast<size_t>(2 * columns + columns / 3)] =
          std::numeric_limits<double>::quiet_NaN();
    }
  }
  return values;
}

std::vector<double> MakeNormal(int64_t count, double shift, double scale, DType dtype,
                               uint64_t seed) {
  Random random(seed);
  const reference::Format format = FormatOf(dtype);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    value = reference::RoundTo(format, shift + scale * random.Normal());
  }
  return values;
}

std::vector<std::byte> ToBytes(DType dtype, const std::vector<double>& values) {
  return reference::Encode(FormatOf(dtype), values);
}

std::vector<double> ToValues(DType dtype, const std::vector<std::byte>& bytes) {
  return reference::Decode(FormatOf(dtype), bytes);
}

}  // namespace norm::testing
