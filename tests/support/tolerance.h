// The one table of what a computed value may differ from the float64 reference by, and the matcher
// over it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "norm/kernels/dtype.h"

namespace norm::testing {

/// Kinds of outputs with rules of their own.
enum class Output {
  kY,              // scale: the sum of absolute terms of y
  kYRoundedFirst,  // y with Rounding::kNormalizedFirst: one more rounding, at any tie
  kMean,           // scale: |mean| + standard deviation
  kRstd,           // scale: |rstd|
  kRunning,        // scale: |old| + |new|
  kDx,             // scale: largest |dx| of the row; floor: rstd * largest |dy * weight|
  kDParameter,     // dweight, dbias; scale: sum of |terms|; floor (f64): sum of |dy|
};

/// Largest allowed |got - reference| for one value.
///
/// f32:        y 5e-6 * max(1, |reference|); dx 5e-6 * scale + 4e-7 * floor; dweight, dbias 1e-6 *
/// scale + 1 ulp f16, bf16:  1 ulp from the reference rounded once, or 1e-6 * scale where terms
/// cancel f64:        1e-12 * scale statistics: mean 1e-6 * scale, rstd and running 5e-6 * scale
/// (f64: 1e-12 * scale)
double Tolerance(Output output, DType dtype, double reference, double scale, double floor);

/// Reference values with the scale (and floor) that Tolerance needs of each index.
struct Expectation {
  const std::vector<double>* reference;
  std::function<double(size_t)> scale;
  std::function<double(size_t)> floor = [](size_t) { return 0.0; };
};

/// Whether every value is within Tolerance. A reference that is not finite, or not finite in
/// `dtype`, must be met by the same class of value: NaN by NaN, infinity by the same infinity. The
/// message names the worst index, both values and the tolerance.
::testing::AssertionResult Matches(Output output, DType dtype, const std::vector<double>& got,
                                   const Expectation& expected);

/// `scale` of a constant.
std::function<double(size_t)> Constant(double value);

}  // namespace norm::testing
