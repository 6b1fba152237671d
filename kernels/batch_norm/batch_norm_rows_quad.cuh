// Four consecutive channels as one thread of the channel-last BatchNorm kernels holds them.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_device.h"
#include "primitives/element_access.cuh"

namespace norm_device {

/// Four consecutive elements as they lie in memory.
template <typename Tag>
struct Quad;

template <>
struct Quad<F32> {
  using Raw = uint4;
  static __device__ void Widen(const Raw& raw, float (&values)[4]) {
    values[0] = __uint_as_float(raw.x);
    values[1] = __uint_as_float(raw.y);
    values[2] = __uint_as_float(raw.z);
    values[3] = __uint_as_float(raw.w);
  }
  static __device__ Raw Narrow(const float (&values)[4]) {
    return {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
            __float_as_uint(values[3])};
  }
  static __device__ Raw LoadNarrow(const float* source) {
    return {__float_as_uint(source[0]), __float_as_uint(source[1]), __float_as_uint(source[2]),
            __float_as_uint(source[3])};
  }
  static __device__ void StoreNarrow(float* destination, const Raw& raw) {
    destination[0] = __uint_as_float(raw.x);
    destination[1] = __uint_as_float(raw.y);
    destination[2] = __uint_as_float(raw.z);
    destination[3] = __uint_as_float(raw.w);
  }
};

/// Of 16-bit elements.
struct NarrowQuad {
  using Raw = uint2;
  static __device__ Raw LoadNarrow(const void* source) {
    const uint16_t* from = static_cast<const uint16_t*>(source);
    return {from[0] | static_cast<uint32_t>(from[1]) << 16, from[2] | static_cast<uint32_t>(from[3])
                                                                          << 16};
  }
  static __device__ void StoreNarrow(void* destination, const Raw& raw) {
    uint16_t* to = static_cast<uint16_t*>(destination);
    to[0] = static_cast<uint16_t>(raw.x);
    to[1] = static_cast<uint16_t>(raw.x >> 16);
    to[2] = static_cast<uint16_t>(raw.y);
    to[3] = static_cast<uint16_t>(raw.y >> 16);
  }
};

template <>
struct Quad<BF16> : NarrowQuad {
  static __device__ void Widen(const Raw& raw, float (&values)[4]) {
    constexpr uint32_t kHigh = 0xffff0000U;
    values[0] = __uint_as_float(raw.x << 16);
    values[1] = __uint_as_float(raw.x & kHigh);
    values[2] = __uint_as_float(raw.y << 16);
    values[3] = __uint_as_float(raw.y & kHigh);
  }
  static __device__ Raw Narrow(const float (&values)[4]) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values[0], values[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values[2], values[3]);
    return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
  }
};

template <>
struct Quad<F16> : NarrowQuad {
  static __device__ void Widen(const Raw& raw, float (&values)[4]) {
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.y));
    values[0] = low.x;
    values[1] = low.y;
    values[2] = high.x;
    values[3] = high.y;
  }
  static __device__ Raw Narrow(const float (&values)[4]) {
    const __half2 low = __floats2half2_rn(values[0], values[1]);
    const __half2 high = __floats2half2_rn(values[2], values[3]);
    return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
  }
};

template <typename Tag>
using QuadOf = typename Quad<Tag>::Raw;

template <typename Tag>
__device__ QuadOf<Tag> LoadQuad(const StorageOf<Tag>* source, bool wide) {
  if (wide) return *reinterpret_cast<const QuadOf<Tag>*>(source);
  return Quad<Tag>::LoadNarrow(source);
}

template <typename Tag>
__device__ void StoreQuad(StorageOf<Tag>* destination, const QuadOf<Tag>& raw, bool wide) {
  if (wide) {
    *reinterpret_cast<QuadOf<Tag>*>(destination) = raw;
    return;
  }
  Quad<Tag>::StoreNarrow(destination, raw);
}

/// A weight or bias; `absent` without.
template <typename Tag>
__device__ float LoadWeight(const void* weights, bool f32_weights, int channel, float absent) {
  if (weights == nullptr) return absent;
  if (f32_weights) return static_cast<const float*>(weights)[channel];
  return Element<Tag>::Widen(static_cast<const StorageOf<Tag>*>(weights)[channel]);
}

/// A gradient of a weight or bias, if it is wanted.
template <typename Tag>
__device__ void StoreWeight(void* weights, bool f32_weights, int channel, float value) {
  if (weights == nullptr) return;
  if (f32_weights) {
    static_cast<float*>(weights)[channel] = value;
  } else {
    static_cast<StorageOf<Tag>*>(weights)[channel] = Element<Tag>::Narrow(value);
  }
}

/// What sums over a channel are taken relative to: its first value.
template <typename X>
__device__ void LoadReference(const void* x, int channel, bool wide, float (&reference)[4]) {
  Quad<X>::Widen(LoadQuad<X>(static_cast<const StorageOf<X>*>(x) + channel, wide), reference);
#pragma unroll
  for (int c = 0; c < 4; ++c) reference[c] = isfinite(reference[c]) ? reference[c] : 0.0F;
}

template <typename X>
__device__ double LoadReference(const void* x, int channel) {
  const float value = Element<X>::Widen(static_cast<const StorageOf<X>*>(x)[channel]);
  return isfinite(value) ? static_cast<double>(value) : 0.0;
}

/// A channel's coefficients of one thread's granule.
__device__ inline void LoadFour(const float* source, float (&values)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(source);
  values[0] = four.x;
  values[1] = four.y;
  values[2] = four.z;
  values[3] = four.w;
}

}  // namespace norm_device
