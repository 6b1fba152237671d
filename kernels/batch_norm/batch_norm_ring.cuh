// Building blocks of the resident BatchNorm kernels: asynchronous copies into slots that only the
// copying thread reads, sums that blocks of a grid show each other, granules as packed words.
// sm_80 and later.
#pragma once

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "batch_norm/batch_norm_ring.h"
#include "primitives/element_access.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define NORM_HAVE_RING 1
#else
#define NORM_HAVE_RING 0
#endif

namespace norm_device {

#if NORM_HAVE_RING

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void CopyGranuleAsync(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all but the kPending newest groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ uint4 LoadShared(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// Counts arrivals of a block's warps; waits are for the end of a phase, numbered from 0.
class WarpBarrier {
 public:
  __device__ void Init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(&word_)), "r"(arrivals)
                 : "memory");
  }
  __device__ void Arrive() {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     SharedAddress(&word_))
                 : "memory");
  }
  __device__ void WaitPhase(uint32_t phase) {
    uint32_t done = 0;
    while (done == 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(SharedAddress(&word_)), "r"(phase & 1)
          : "memory");
#else
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(SharedAddress(&word_)), "r"(phase & 1)
          : "memory");
#endif
    }
  }

 private:
  uint64_t word_;
};

/// A double is its own flag: all ones, a NaN that no sum here becomes, says that it is not there
/// yet. So one relaxed store and one relaxed load carry it, without a fence that would wait for the
/// block's other stores.
inline constexpr uint64_t kNotPublished = ~uint64_t{0};

__device__ __forceinline__ uint64_t PublishedBits(double value) {
  constexpr uint64_t kNan = 0x7FF8000000000000ULL;
  return isnan(value) ? kNan : static_cast<uint64_t>(__double_as_longlong(value));
}
__device__ __forceinline__ void PublishPair(uint64_t* to, double a, double b) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(PublishedBits(a)),
               "l"(PublishedBits(b))
               : "memory");
}
/// Whether both were there.
__device__ __forceinline__ bool TryReadPair(const uint64_t* from, double& a, double& b) {
  uint64_t a_bits;
  uint64_t b_bits;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(a_bits), "=l"(b_bits)
               : "l"(from)
               : "memory");
  a = __longlong_as_double(static_cast<long long>(a_bits));
  b = __longlong_as_double(static_cast<long long>(b_bits));
  return a_bits != kNotPublished && b_bits != kNotPublished;
}

/// Until every block whose sums this one reads has cleared its places, and this one may publish.
__device__ __forceinline__ void SyncCleared(const RingShape& shape) {
  if (shape.group_blocks == 1) {
    __syncthreads();
  } else {
    cooperative_groups::this_grid().sync();
  }
}

#endif  // NORM_HAVE_RING

/// 16 bytes of elements as four words, widened to and narrowed from f32.
template <typename X>
struct WideGranule;

template <>
struct WideGranule<F32> {
  static constexpr int kElements = 4;
  static __device__ __forceinline__ void Widen(const uint4& g, float (&v)[4]) {
    v[0] = __uint_as_float(g.x);
    v[1] = __uint_as_float(g.y);
    v[2] = __uint_as_float(g.z);
    v[3] = __uint_as_float(g.w);
  }
  static __device__ __forceinline__ uint4 Narrow(const float (&v)[4]) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                      __float_as_uint(v[3]));
  }
};

template <>
struct WideGranule<BF16> {
  static constexpr int kElements = 8;
  static __device__ __forceinline__ void Widen(const uint4& g, float (&v)[8]) {
    const uint32_t words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
  static __device__ __forceinline__ uint4 Narrow(const float (&v)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      memcpy(&words[i], &pair, sizeof(pair));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

template <>
struct WideGranule<F16> {
  static constexpr int kElements = 8;
  static __device__ __forceinline__ void Widen(const uint4& g, float (&v)[8]) {
    const uint32_t words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __half2 pair;
      memcpy(&pair, &words[i], sizeof(pair));
      const float2 wide = __half22float2(pair);
      v[2 * i] = wide.x;
      v[2 * i + 1] = wide.y;
    }
  }
  static __device__ __forceinline__ uint4 Narrow(const float (&v)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
      memcpy(&words[i], &pair, sizeof(pair));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

/// A granule at a multiple of 16, or of its element only: the same bits, but in kernels of their own,
/// since even code that is not reached costs the aligned ones registers and instructions.
template <typename X, bool kAligned>
__device__ __forceinline__ uint4 LoadGranuleWords(const char* source) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const uint4*>(source);
  } else {
    StorageOf<X> values[kWideElements<X>];
#pragma unroll
    for (int i = 0; i < kWideElements<X>; ++i) {
      values[i] = reinterpret_cast<const StorageOf<X>*>(source)[i];
    }
    uint4 words;
    memcpy(&words, values, sizeof(words));
    return words;
  }
}
template <typename X, bool kAligned>
__device__ __forceinline__ void StoreGranuleWords(char* destination, const uint4& words) {
  if constexpr (kAligned) {
    *reinterpret_cast<uint4*>(destination) = words;
  } else {
    StorageOf<X> values[kWideElements<X>];
    memcpy(values, &words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kWideElements<X>; ++i) {
      reinterpret_cast<StorageOf<X>*>(destination)[i] = values[i];
    }
  }
}

/// A parameter whose dtype is the activations' or f32.
template <typename X>
__device__ float LoadParameter(const void* source, uint32_t channel, bool like_x, float absent) {
  if (source == nullptr) return absent;
  return like_x ? Element<X>::Widen(static_cast<const StorageOf<X>*>(source)[channel])
                : static_cast<const float*>(source)[channel];
}
template <typename X>
__device__ void StoreParameter(void* destination, uint32_t channel, bool like_x, double value) {
  if (destination == nullptr) return;
  if (like_x) {
    static_cast<StorageOf<X>*>(destination)[channel] =
        Element<X>::Narrow(static_cast<float>(value));
  } else {
    static_cast<float*>(destination)[channel] = static_cast<float>(value);
  }
}

/// Butterfly over the lanes of a warp: all lanes get the same bits.
template <int K>
__device__ __forceinline__ void WarpSum(double (&sums)[K]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) sums[k] += __shfl_xor_sync(0xFFFFFFFFU, sums[k], offset);
  }
}

/// 1 / sqrt(v), rounded to f32 from f64.
__device__ inline float ReciprocalRoot(double v) {
  constexpr double kSmallest = 1e-30;
  constexpr double kLargest = 1e30;
  if (!(v > kSmallest && v < kLargest)) return static_cast<float>(1.0 / sqrt(v));
  double root = static_cast<double>(rsqrtf(static_cast<float>(v)));
#pragma unroll
  for (int i = 0; i < 2; ++i) root *= fma(-0.5 * v * root, root, 1.5);
  return static_cast<float>(root);
}

/// The segment and the item in it of an item counted over all segments.
struct RingItem {
  uint32_t segment = 0;
  uint32_t item = 0;

  __device__ explicit RingItem(uint32_t first, uint32_t items) : item(first) { Settle(items); }
  __device__ void Advance(uint32_t by, uint32_t items) {
    item += by;
    Settle(items);
  }

 private:
  __device__ void Settle(uint32_t items) {
    while (item >= items) {
      item -= items;
      ++segment;
    }
  }
};

}  // namespace norm_device
