#include "tests/support/tensor_data.h"

#include <cmath>
#include <limits>

namespace norm::testing {
namespace {

/// splitmix64: the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  /// In (0, 1).
  double Unit() { return (static_cast<double>(Bits() >> 11) + 0.5) * 0x1p-53; }
  double Normal() {
    static const Ziggurat ziggurat;
    while (true) {
      const uint64_t bits = Bits();
      const size_t strip = bits % Ziggurat::kStrips;
      const double unit = static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
      const double value = unit * ziggurat.edge[strip];
      if (std::fabs(value) < ziggurat.edge[strip + 1]) return value;
      if (strip == 0) return std::copysign(Tail(), unit);
      const double top = ziggurat.density[strip + 1];
      const double bottom = ziggurat.density[strip];
      if (bottom + Unit() * (top - bottom) < Ziggurat::Density(value)) return value;
    }
  }

 private:
  /// Marsaglia and Tsang: strips of equal area under exp(-x^2 / 2). Strip 0 holds the tail past
  /// kTail, and its edge is as far out as its area asks for.
  struct Ziggurat {
    static constexpr size_t kStrips = 128;
    static constexpr double kTail = 3.442619855899;
    static constexpr double kArea = 9.91256303526217e-3;

    static double Density(double x) { return std::exp(-0.5 * x * x); }

    Ziggurat() {
      edge[0] = kArea / Density(kTail);
      edge[1] = kTail;
      for (size_t i = 2; i < kStrips; ++i) {
        edge[i] = std::sqrt(-2.0 * std::log(kArea / edge[i - 1] + Density(edge[i - 1])));
      }
      edge[kStrips] = 0.0;
      for (size_t i = 0; i <= kStrips; ++i) density[i] = Density(edge[i]);
    }

    double edge[kStrips + 1];
    double density[kStrips + 1];
  };

  uint64_t Bits() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// A normal value past kTail.
  double Tail() {
    double x = 0.0;
    double y = 0.0;
    do {
      x = -std::log(Unit()) / Ziggurat::kTail;
      y = -std::log(Unit());
    } while (2.0 * y < x * x);
    return Ziggurat::kTail + x;
  }

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
