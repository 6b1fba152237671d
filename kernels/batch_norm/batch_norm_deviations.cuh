// Where the deviations of a few values are taken from, and when f32 cannot square them.
#pragma once

#include "primitives/element_access.cuh"

namespace norm_device {

/// A mean to take deviations from. Two-byte values lie on a coarse grid: from a point of the grid
/// deviations are exact, from elsewhere all would round the same way.
template <typename X>
__device__ __forceinline__ ComputeOf<X> GridMean(double mean) {
  return Element<X>::Widen(Element<X>::Narrow(static_cast<ComputeOf<X>>(mean)));
}

/// Whether squares overflowed f32 (or met a NaN), or may have underflowed where eps does not hide it.
__device__ __forceinline__ bool SquaresLeftF32(double squares, double smallest) {
  constexpr double kLargest = 3e38;
  return !(squares < kLargest && squares >= smallest);
}

}  // namespace norm_device
