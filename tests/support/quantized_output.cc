#include "tests/support/quantized_output.h"

#include <algorithm>
#include <cmath>

namespace norm::testing {
namespace {

using reference::ByteFormat;

constexpr double kTolerance = 5e-6;
constexpr double kRoundings = 4 * 0x1p-24;
constexpr double kUnderflow = 0x1p-148;

/// What the rounding of x * rstd to a 16-bit type may add, relative to the term it is part of: the
/// other neighbour at a tie.
double FirstRounding(const RowForwardCase& problem) {
  if (problem.rounding == Rounding::kOnce) {
    return 0.0;
  }
  switch (problem.dtypes.dtype) {
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    default:
      return 0.0;
  }
}

/// One row of the reference in the units of its codes.
struct RowRule {
  ByteFormat format;
  double scale;
  double scale_tolerance;  // relative
  double largest_term;
  double first_rounding;

  bool SameCode(uint8_t got, double y, double term) const {
    const double value = reference::DecodeByte(format, got);
    if (std::isnan(y) || !std::isfinite(scale) || scale == 0.0) {
      const double exact = reference::DecodeByte(format, reference::Quantize(format, y, scale));
      return value == exact || (std::isnan(value) && std::isnan(exact));
    }
    const double t = y / scale;
    if (std::isinf(t)) {
      return got == reference::EncodeByte(format, t);
    }
    const double y_tolerance = kTolerance * std::min(std::max(1.0, std::fabs(y)), largest_term) +
                               first_rounding * term + kUnderflow;
    const double e = std::fabs(t) * (scale_tolerance + kRoundings) + y_tolerance / scale;
    return value >= reference::DecodeByte(format, reference::EncodeByte(format, t - e)) &&
           value <= reference::DecodeByte(format, reference::EncodeByte(format, t + e));
  }
};

double Largest(const std::vector<double>& values, int64_t row, int64_t hidden_size) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * hidden_size;
  return *std::max_element(begin, begin + hidden_size);
}

}  // namespace

ByteFormat ByteFormatOf(OutputFormat format) {
  return format == OutputFormat::kInt8PerRow ? ByteFormat::kInt8 : ByteFormat::kF8E4M3;
}

::testing::AssertionResult MatchesQuantized(const RowForwardCase& problem,
                                            const reference::RowNormResult& want,
                                            const RowForwardOutputs& got) {
  const bool per_row = HasRowScale(problem.output_format);
  const std::vector<double> scales = ToValues(DType::kF32, got.row_scale);
  const size_t columns = static_cast<size_t>(problem.hidden_size);
  if (got.y.size() != want.y.size() ||
      scales.size() != (per_row ? static_cast<size_t>(problem.rows) : 0)) {
    return ::testing::AssertionFailure()
           << got.y.size() << " codes and " << scales.size() << " scales";
  }
  RowRule rule;
  rule.format = ByteFormatOf(problem.output_format);
  rule.first_rounding = FirstRounding(problem);
  for (int64_t row = 0; row < problem.rows; ++row) {
    rule.largest_term = Largest(want.y_magnitude, row, problem.hidden_size);
    rule.scale = static_cast<double>(problem.y_scale);
    rule.scale_tolerance = 0.0;
    if (per_row) {
      const double scale = scales[static_cast<size_t>(row)];
      rule.scale = reference::RowScale(rule.format, want.y, row, problem.hidden_size);
      if (std::isfinite(rule.scale) && rule.scale != 0.0) {
        rule.scale_tolerance = kTolerance + rule.first_rounding * rule.largest_term /
                                                (rule.scale * reference::LargestValue(rule.format));
      }
      const bool same_class = std::isnan(rule.scale) ? std::isnan(scale) : scale == rule.scale;
      if (!same_class && !(std::fabs(scale - rule.scale) <= rule.scale_tolerance * rule.scale)) {
        return ::testing::AssertionFailure()
               << "row " << row << ": scale " << scale << ", want " << rule.scale;
      }
    }
    for (size_t column = 0; column < columns; ++column) {
      const size_t i = static_cast<size_t>(row) * columns + column;
      const auto code = std::to_integer<uint8_t>(got.y[i]);
      // y is an f32 number before it is quantized.
      const double y = reference::RoundTo(reference::Format::kF32, want.y[i]);
      if (!rule.SameCode(code, y, want.y_magnitude[i])) {
        return ::testing::AssertionFailure()
               << "row " << row << ", column " << column << ": code " << int{code} << " is "
               << reference::DecodeByte(rule.format, code) << ", but y = " << y << " at scale "
               << rule.scale << " is " << y / rule.scale;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace norm::testing
