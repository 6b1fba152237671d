// Tolerances of the checks, and their bookkeeping.
#pragma once

#include "bench/any_element.cuh"
#include "bench/reference_device.h"

namespace norm_device {

/// Rounding of the output, and a part of `scale` for the arithmetic before it.
__device__ inline double Allowed(Element element, double reference, double scale, double relative) {
  const double ulp = UlpAny(element, reference);
  switch (element) {
    case Element::kF32:
      return ulp + relative * scale;
    case Element::kF16:
    case Element::kBF16:
      return 1.5 * ulp + relative * scale;
    case Element::kF64:
      return 1e-12 * scale + ulp;
    case Element::kF8E4M3:
    case Element::kInt8:
      return 0.5 * ulp + relative * scale;  // one rounding, at a tie either way
  }
  return 0.0;
}

/// Notes one value. NaN is wrong.
__device__ inline void Judge(OutputCheck* checks, Checked output, double got, double want,
                             double allowed) {
  const double error = fabs(got - want);
  if (error <= allowed) {
    // Most values pass with room: only errors past half of what is allowed are worth an atomic.
    if (error <= 0.5 * allowed) return;
  } else {
    atomicAdd(&checks[output].wrong, 1ull);
  }
  const double ratio = isnan(error) ? __longlong_as_double(0x7ff0000000000000ll) : error / allowed;
  atomicMax(&checks[output].worst_bits,
            static_cast<unsigned long long>(__double_as_longlong(ratio)));
}

__device__ inline void CountValues(OutputCheck* checks, Checked output, int64_t values) {
  atomicAdd(&checks[output].values, static_cast<unsigned long long>(values));
}

/// Sum over the block; every thread gets it. `scratch` holds one value a thread.
__device__ inline double BlockSum(double value, double* scratch) {
  __syncthreads();
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  return scratch[0];
}

__device__ inline double BlockMax(double value, double* scratch) {
  __syncthreads();
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      scratch[threadIdx.x] = fmax(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return scratch[0];
}

/// Largest of non-negative values.
__device__ inline void AtomicMaxNonNegative(double* target, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(target),
            static_cast<unsigned long long>(__double_as_longlong(value)));
}

inline constexpr int kReferenceThreads = 256;

}  // namespace norm_device
