// Centred moments and reciprocal standard deviations.
#pragma once

#include <cuda_runtime.h>

namespace norm_device {

/// 1 / sqrt(variance + eps), correctly rounded steps. An eps that f32 would lose is added in f64:
/// once per row.
__device__ inline float ReciprocalDeviation(float variance, double eps) {
  constexpr double kSmallestPlainEps = 1e-30;
  if (eps >= kSmallestPlainEps) return 1.0F / sqrtf(variance + static_cast<float>(eps));
  return static_cast<float>(1.0 / sqrt(static_cast<double>(variance) + eps));
}

__device__ inline double ReciprocalDeviation(double variance, double eps) {
  return 1.0 / sqrt(variance + eps);
}

/// Whether f32 squares with this mean overflowed (or met a NaN), or may have underflowed where eps
/// does not hide it.
__device__ inline bool SquaresLeaveF32(double mean_square, double eps) {
  constexpr double kLargest = 3e38;
  constexpr double kSmallest = 1e-30;
  constexpr double kHidingEps = 1e-20;
  return !(mean_square < kLargest) || (mean_square < kSmallest && eps < kHidingEps);
}

/// A mean in f64 as a pair of type C: what C cannot hold of it is left in the second. Nothing for
/// f64.
template <typename C>
__device__ void SplitMean(double mean, C& high, C& low) {
  high = static_cast<C>(mean);
  low = static_cast<C>(mean - static_cast<double>(high));
}

/// Count, mean and sum of squared deviations of a set of values.
struct Moments {
  double count;
  double mean;
  double m2;

  /// Adds another set (Chan, Golub, LeVeque 1979). Exact counts; order of merging is the caller's
  /// and fixed.
  __device__ void Merge(const Moments& other) {
    if (other.count == 0.0) return;
    const double total = count + other.count;
    const double share = other.count / total;
    const double delta = other.mean - mean;
    mean += delta * share;
    m2 += other.m2 + delta * delta * count * share;
    count = total;
  }
};

}  // namespace norm_device
