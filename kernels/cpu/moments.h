// Count, mean and centred second moment of a set of values, and their exact union.
#pragma once

namespace norm::internal {

/// The mean is mean + mean_low, so that deviations from it keep full precision when it is large
/// against them.
struct Moments {
  double count = 0.0;
  double mean = 0.0;
  double mean_low = 0.0;
  double m2 = 0.0;  // sum of squared deviations from the mean
};

/// The moments of both sets together (Chan, Golub, LeVeque 1979): no difference of large sums.
inline Moments Merge(const Moments& a, const Moments& b) {
  if (a.count == 0.0) {
    return b;
  }
  if (b.count == 0.0) {
    return a;
  }
  Moments both;
  both.count = a.count + b.count;
  const double delta = (b.mean - a.mean) + (b.mean_low - a.mean_low);
  const double step = a.mean_low + delta * (b.count / both.count);
  // Knuth's two-sum: mean + mean_low is a.mean + step without rounding.
  both.mean = a.mean + step;
  const double rounded_step = both.mean - a.mean;
  both.mean_low = (a.mean - (both.mean - rounded_step)) + (step - rounded_step);
  both.m2 = a.m2 + b.m2 + delta * delta * (a.count * b.count / both.count);
  return both;
}

}  // namespace norm::internal
