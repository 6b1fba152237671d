#include "tests/support/tolerance.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/support/tensor_data.h"

namespace norm::testing {
namespace {

double NarrowTolerance(Output output, DType dtype, double reference, double scale, double floor) {
  const reference::Format format = FormatOf(dtype);
  const double rounding = std::fabs(reference::RoundTo(format, reference) - reference);
  const double one_ulp = reference::Ulp(format, reference) + rounding;
  switch (output) {
    case Output::kYRoundedFirst:
      // The normalized value may round the other way at a tie: one ulp of it, times weight.
      return one_ulp + scale * (dtype == DType::kF16 ? 0x1p-10 : 0x1p-7);
    case Output::kDx:
      return std::max(one_ulp, 5e-6 * scale + 4e-7 * floor + rounding);
    case Output::kDParameter:
      return std::max(one_ulp, 1e-6 * scale + rounding);
    default:
      return std::max(one_ulp, 1e-6 * scale + rounding);
  }
}

double F32Tolerance(Output output, double reference, double scale, double floor) {
  switch (output) {
    case Output::kY:
    case Output::kYRoundedFirst:
      return 5e-6 * std::max(1.0, std::fabs(reference));
    case Output::kMean:
      return 1e-6 * scale;
    case Output::kRstd:
    case Output::kRunning:
      return 5e-6 * scale;
    case Output::kDx:
      return 5e-6 * scale + 4e-7 * floor + reference::Ulp(reference::Format::kF32, reference);
    case Output::kDParameter:
      return 1e-6 * scale + reference::Ulp(reference::Format::kF32, reference);
  }
  return 0.0;
}

double F64Tolerance(Output output, double scale, double floor) {
  switch (output) {
    case Output::kY:
    case Output::kYRoundedFirst:
      return 1e-12 * std::max(1.0, scale);
    case Output::kDParameter:
      return 1e-12 * scale + 1e-15 * floor;
    default:
      return 1e-12 * (scale + floor);
  }
}

bool SameClass(double got, double want) { return std::isnan(want) ? std::isnan(got) : got == want; }

}  // namespace

double Tolerance(Output output, DType dtype, double reference, double scale, double floor) {
  switch (dtype) {
    case DType::kF32:
      return F32Tolerance(output, reference, scale, floor);
    case DType::kF16:
    case DType::kBF16:
      return NarrowTolerance(output, dtype, reference, scale, floor);
    case DType::kF64:
      return F64Tolerance(output, scale, floor);
  }
  return 0.0;
}

::testing::AssertionResult Matches(Output output, DType dtype, const std::vector<double>& got,
                                   const Expectation& expected) {
  const std::vector<double>& reference = *expected.reference;
  if (got.size() != reference.size()) {
    return ::testing::AssertionFailure() << got.size() << " values, expected " << reference.size();
  }
  size_t wrong = 0;
  size_t worst = 0;
  double worst_excess = 0.0;
  double worst_tolerance = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double rounded = reference::RoundTo(FormatOf(dtype), reference[i]);
    if (got[i] == rounded) continue;  // nothing is closer
    double excess = 0.0;
    double tolerance = 0.0;
    if (!std::isfinite(rounded)) {
      excess = SameClass(got[i], rounded) ? 0.0 : HUGE_VAL;
    } else {
      tolerance = Tolerance(output, dtype, reference[i], expected.scale(i), expected.floor(i));
      const double error = std::fabs(got[i] - reference[i]);
      // Written so that a NaN is an excess.
      excess = error <= tolerance ? 0.0 : (std::isnan(error) ? HUGE_VAL : error / tolerance);
    }
    if (excess > 0.0) {
      ++wrong;
      if (excess > worst_excess) {
        worst_excess = excess;
        worst = i;
        worst_tolerance = tolerance;
      }
    }
  }
  if (wrong == 0) {
    return ::testing::AssertionSuccess();
  }
  std::ostringstream message;
  message.precision(17);
  message << wrong << " of " << got.size() << " " << DTypeName(dtype)
          << " values wrong; worst at index " << worst << ": got " << got[worst] << ", want "
          << reference[worst] << " within " << worst_tolerance;
  return ::testing::AssertionFailure() << message.str();
}

std::function<double(size_t)> Constant(double value) {
  return [value](size_t) { return value; };
}

}  // namespace norm::testing
