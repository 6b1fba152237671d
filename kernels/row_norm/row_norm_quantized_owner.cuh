// The threads that share a row whose y is quantized: lanes of a warp or a block, with exchanges of
// few instructions beside those of primitives/row_owner.cuh.
#pragma once

#include <cstdint>

#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_quantized_device.h"

namespace norm_device {

/// Largest over aligned groups of kLanes lanes.
template <int kLanes>
__device__ uint32_t LaneLargest(uint32_t value) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kLanes == kWarpThreads) return __reduce_max_sync(0xffffffffU, value);
#endif
  return LaneMax<kLanes>(value);
}

/// Adds a and b up over aligned groups of kLanes lanes. The total of a comes out in the lower half of
/// the lanes, that of b in the upper.
template <int kLanes>
__device__ float LaneSumHalves(float a, float b) {
  const bool upper = threadIdx.x % kLanes >= kLanes / 2;
  float value[1] = {upper ? b : a};
  value[0] += __shfl_xor_sync(0xffffffffU, upper ? a : b, kLanes / 2);
  LaneSum<kLanes / 2>(value);
  return value[0];
}

/// Lanes of a warp.
template <int kLanes>
class QuantizedLanes : public LaneRow<kLanes> {
 public:
  using LaneRow<kLanes>::LaneRow;

  __device__ static int threads_per_row() { return kLanes; }
  /// Of the row's threads, the one that stores its statistics.
  __device__ static bool IsStatistician() { return threadIdx.x % kLanes == 0; }

  __device__ void SumTwo(float& a, float& b) {
    const bool upper = threadIdx.x % kLanes >= kLanes / 2;
    const float own = LaneSumHalves<kLanes>(a, b);
    const float other = __shfl_xor_sync(0xffffffffU, own, kLanes / 2);
    a = upper ? other : own;
    b = upper ? own : other;
  }
  __device__ void SumOne(float& a) {
    float sum[1] = {a};
    LaneSum<kLanes>(sum);
    a = sum[0];
  }
  __device__ void SumAndLargest(float& a, uint32_t& largest) {
    SumOne(a);
    largest = LaneLargest<kLanes>(largest);
  }
  __device__ uint32_t Largest(uint32_t value) { return LaneLargest<kLanes>(value); }
};

/// A block of whole warps. All threads take part in every exchange.
class QuantizedBlock : public BlockOwner {
 public:
  static constexpr int kMostWarps = kMaxQuantizedBlockThreads / kWarpThreads;
  struct Scratch {
    BlockOwner::Scratch wide;
    /// Two values of every warp; two buffers in turn. Zeros of the warps that are not there.
    alignas(16) uint32_t parts[2][2][kMostWarps];
  };

  __device__ explicit QuantizedBlock(Scratch& scratch)
      : BlockOwner(scratch.wide), parts_(&scratch.parts[0][0][0]) {
    for (int i = static_cast<int>(threadIdx.x); i < 4 * kMostWarps; i += blockDim.x) parts_[i] = 0;
    __syncthreads();
  }

  __device__ static int threads_per_row() { return static_cast<int>(blockDim.x); }
  /// Of the last warp, since the first one feeds the row.
  __device__ static bool IsStatistician() { return threadIdx.x + kWarpThreads == blockDim.x; }

  __device__ void SumTwo(float& a, float& b) {
    const float own = LaneSumHalves<kWarpThreads>(a, b);
    if (threadIdx.x % (kWarpThreads / 2) == 0) {
      const int k = static_cast<int>(threadIdx.x % kWarpThreads) / (kWarpThreads / 2);
      Buffer()[k * kMostWarps + Warp()] = __float_as_uint(own);
    }
    __syncthreads();
    a = 0.0F;
    b = 0.0F;
    ForEachFour([&](uint4 first, uint4 second) {
      a += SumOfFour(first);
      b += SumOfFour(second);
    });
  }
  __device__ void SumOne(float& a) {
    uint32_t none = 0;
    SumAndLargest(a, none);
  }
  __device__ void SumAndLargest(float& a, uint32_t& largest) {
    float sum[1] = {a};
    LaneSum<kWarpThreads>(sum);
    largest = LaneLargest<kWarpThreads>(largest);
    if (threadIdx.x % kWarpThreads == 0) {
      Buffer()[Warp()] = __float_as_uint(sum[0]);
      Buffer()[kMostWarps + Warp()] = largest;
    }
    __syncthreads();
    a = 0.0F;
    largest = 0;
    ForEachFour([&](uint4 first, uint4 second) {
      a += SumOfFour(first);
      largest = max(largest, LargestOfFour(second));
    });
  }
  __device__ uint32_t Largest(uint32_t value) {
    value = LaneLargest<kWarpThreads>(value);
    if (threadIdx.x % kWarpThreads == 0) Buffer()[Warp()] = value;
    __syncthreads();
    uint32_t largest = 0;
    ForEachFour([&](uint4 first, uint4) { largest = max(largest, LargestOfFour(first)); });
    return largest;
  }

 private:
  static __device__ int Warp() { return static_cast<int>(threadIdx.x / kWarpThreads); }
  static __device__ float SumOfFour(uint4 four) {
    return (__uint_as_float(four.x) + __uint_as_float(four.y)) +
           (__uint_as_float(four.z) + __uint_as_float(four.w));
  }
  static __device__ uint32_t LargestOfFour(uint4 four) {
    return max(max(four.x, four.y), max(four.z, four.w));
  }

  __device__ uint32_t* Buffer() const { return parts_ + turn_; }

  /// Calls visit(first values, second values) for every four warps and turns to the other buffer.
  template <typename Visit>
  __device__ void ForEachFour(Visit&& visit) {
    const uint32_t* parts = Buffer();
    const int warps = static_cast<int>(blockDim.x / kWarpThreads);
    int warp = 0;
#pragma unroll 1
    do {
      visit(*reinterpret_cast<const uint4*>(parts + warp),
            *reinterpret_cast<const uint4*>(parts + kMostWarps + warp));
      warp += 4;
    } while (warp < warps);
    turn_ ^= 2 * kMostWarps;
  }

  uint32_t* parts_;
  int turn_ = 0;  // of the buffers
};

}  // namespace norm_device
