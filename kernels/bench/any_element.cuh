// Loads and stores of elements whose type is a run-time value: slow, and shared with nothing that is
// measured.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "bench/device_tensor.h"

namespace norm_device {

/// E4M3 of arXiv:2209.05433: 4 exponent bits with bias 7, no infinities.
__device__ inline double DecodeF8(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15);
  const int mantissa = static_cast<int>(bits & 7);
  if (exponent == 15 && mantissa == 7) return nan("");
  const double magnitude =
      exponent == 0 ? ldexp(mantissa / 8.0, -6) : ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

__device__ inline double LoadAny(const AnyTensor& tensor, int64_t i) {
  switch (tensor.element) {
    case Element::kF32:
      return static_cast<const float*>(tensor.data)[i];
    case Element::kF16:
      return __half2float(static_cast<const __half*>(tensor.data)[i]);
    case Element::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(tensor.data)[i]);
    case Element::kF64:
      return static_cast<const double*>(tensor.data)[i];
    case Element::kF8E4M3:
      return DecodeF8(static_cast<const uint8_t*>(tensor.data)[i]);
    case Element::kInt8:
      return static_cast<const int8_t*>(tensor.data)[i];
  }
  return 0.0;
}

/// The value that is there, or `absent` without a tensor.
__device__ inline double LoadOr(const AnyTensor& tensor, int64_t i, double absent) {
  return tensor.data == nullptr ? absent : LoadAny(tensor, i);
}

__device__ inline void StoreAny(const AnyTensor& tensor, int64_t i, double value) {
  switch (tensor.element) {
    case Element::kF32:
      static_cast<float*>(tensor.data)[i] = static_cast<float>(value);
      break;
    case Element::kF16:
      static_cast<__half*>(tensor.data)[i] = __double2half(value);
      break;
    case Element::kBF16:
      static_cast<__nv_bfloat16*>(tensor.data)[i] = __double2bfloat16(value);
      break;
    case Element::kF64:
      static_cast<double*>(tensor.data)[i] = value;
      break;
    case Element::kF8E4M3:  // outputs only
    case Element::kInt8:
      break;
  }
}

/// `value` after one rounding to the element type.
__device__ inline double RoundAny(Element element, double value) {
  switch (element) {
    case Element::kF32:
      return static_cast<float>(value);
    case Element::kF16:
      return __half2float(__double2half(value));
    case Element::kBF16:
      return __bfloat162float(__double2bfloat16(value));
    default:
      return value;
  }
}

/// Distance between neighbours around `value`.
__device__ inline double UlpAny(Element element, double value) {
  int digits = 52;
  int smallest = -1074;
  if (element == Element::kF32) {
    digits = 23;
    smallest = -149;
  } else if (element == Element::kF16) {
    digits = 10;
    smallest = -24;
  } else if (element == Element::kBF16) {
    digits = 7;
    smallest = -133;
  } else if (element == Element::kF8E4M3) {
    digits = 3;
    smallest = -9;
  } else if (element == Element::kInt8) {
    return 1.0;
  }
  const int exponent = value == 0.0 ? -2000 : ilogb(value);
  return ldexp(1.0, max(exponent - digits, smallest));
}

__device__ inline int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t GlobalThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace norm_device
