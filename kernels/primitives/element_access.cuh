// Loads, stores and conversions of elements: 16 bytes at a time where every address allows it, one
// element at a time otherwise, with the same assignment of elements to threads either way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "primitives/element_types.h"

namespace norm_device {

/// How a tag is stored in memory and what type it is computed in.
template <typename Tag>
struct Element;

template <>
struct Element<F32> {
  using Storage = float;
  using Compute = float;
  static __device__ float Widen(float value) { return value; }
  static __device__ float Narrow(float value) { return value; }
};

template <>
struct Element<F16> {
  using Storage = __half;
  using Compute = float;
  static __device__ float Widen(__half value) { return __half2float(value); }
  static __device__ __half Narrow(float value) { return __float2half_rn(value); }
};

template <>
struct Element<BF16> {
  using Storage = __nv_bfloat16;
  using Compute = float;
  static __device__ float Widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __device__ __nv_bfloat16 Narrow(float value) { return __float2bfloat16_rn(value); }
};

template <>
struct Element<F64> {
  using Storage = double;
  using Compute = double;
  static __device__ double Widen(double value) { return value; }
  static __device__ double Narrow(double value) { return value; }
};

template <typename Tag>
using StorageOf = typename Element<Tag>::Storage;
template <typename Tag>
using ComputeOf = typename Element<Tag>::Compute;

/// Elements in the 16 bytes of one wide access.
template <typename Tag>
inline constexpr int kWideElements = 16 / static_cast<int>(sizeof(StorageOf<Tag>));

/// V consecutive elements that one thread owns.
template <typename Tag, int V>
struct alignas(V * sizeof(StorageOf<Tag>) < 16 ? V * sizeof(StorageOf<Tag>) : 16) Granule {
  StorageOf<Tag> values[V];

  __device__ ComputeOf<Tag> Wide(int i) const { return Element<Tag>::Widen(values[i]); }
};

template <int kBytes>
struct AccessUnit;
template <>
struct AccessUnit<16> {
  using Type = uint4;
};
template <>
struct AccessUnit<8> {
  using Type = uint2;
};
template <>
struct AccessUnit<4> {
  using Type = uint32_t;
};
template <>
struct AccessUnit<2> {
  using Type = uint16_t;
};

/// Whether `aligned` addresses are multiples of the granule's alignment is the caller's promise,
/// the same for all threads.
template <typename Tag, int V>
__device__ Granule<Tag, V> LoadGranule(const StorageOf<Tag>* source, bool aligned) {
  using Unit = typename AccessUnit<alignof(Granule<Tag, V>)>::Type;
  constexpr int kUnits = static_cast<int>(sizeof(Granule<Tag, V>) / sizeof(Unit));
  Granule<Tag, V> granule;
  if (V == 1 || !aligned) {
#pragma unroll
    for (int i = 0; i < V; ++i) granule.values[i] = source[i];
  } else {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      reinterpret_cast<Unit*>(granule.values)[i] = reinterpret_cast<const Unit*>(source)[i];
    }
  }
  return granule;
}

template <typename Tag, int V>
__device__ void StoreGranule(StorageOf<Tag>* destination, const Granule<Tag, V>& granule,
                             bool aligned) {
  using Unit = typename AccessUnit<alignof(Granule<Tag, V>)>::Type;
  constexpr int kUnits = static_cast<int>(sizeof(Granule<Tag, V>) / sizeof(Unit));
  if (V == 1 || !aligned) {
#pragma unroll
    for (int i = 0; i < V; ++i) destination[i] = granule.values[i];
  } else {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      reinterpret_cast<Unit*>(destination)[i] = reinterpret_cast<const Unit*>(granule.values)[i];
    }
  }
}

template <typename Tag, int V>
__device__ Granule<Tag, V> ZeroGranule() {
  Granule<Tag, V> granule;
#pragma unroll
  for (int i = 0; i < V; ++i) granule.values[i] = Element<Tag>::Narrow(ComputeOf<Tag>(0));
  return granule;
}

}  // namespace norm_device
