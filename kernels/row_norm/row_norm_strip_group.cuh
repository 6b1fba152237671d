// The threads that share a row of strips in backward, and how their sums of it meet.
#pragma once

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// The threads that share a row: kLanes lanes of a warp, or kWarps whole warps.
template <int kLanes, int kWarps>
struct StripGroup {
  static_assert(kWarps == 1 || kLanes == kWarpThreads);
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kSumFloats = 2 * 2 * kWarps;  // turns of gd and g
  static constexpr int kBytes = kWarps == 1 ? 0 : kSumFloats * 4 + kWarps * 3 * 8;

  char* shared;  // kBytes
  int index;     // of the group in the block

  __device__ void Barrier() const {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "n"(kThreads) : "memory");
    }
  }

  template <typename A>
  __device__ static A LanesSum(A value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(0xffffffffU, value, offset);
    }
    return value;
  }

  /// Of rare rows.
  template <int kSums>
  __device__ void Sum(double (&sums)[kSums]) const {
    auto* parts = reinterpret_cast<double*>(shared + kSumFloats * 4);
#pragma unroll
    for (double& sum : sums) sum = LanesSum(sum);
    if constexpr (kWarps > 1) {
      const int warp = static_cast<int>(threadIdx.x) / kWarpThreads % kWarps;
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        if (threadIdx.x % kWarpThreads == 0) parts[warp * kSums + k] = sums[k];
        sums[k] = 0.0;
      }
      Barrier();
#pragma unroll 1
      for (int i = 0; i < kWarps; ++i) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k] += parts[i * kSums + k];
      }
      Barrier();
    }
  }

  /// Totals of gd and g of a row (kLayer) or of gd. `turn` alternates.
  template <RowKind kKind>
  __device__ void SumRow(RowTotals<float>& totals, int turn) const {
    if constexpr (kKind == RowKind::kLayer) {
      constexpr int kHalf = kLanes / 2;
      const bool low = (threadIdx.x & kHalf) == 0;
      const float other = __shfl_xor_sync(0xffffffffU, low ? totals.g : totals.gd, kHalf);
      float sum = (low ? totals.gd : totals.g) + other;
#pragma unroll
      for (int offset = kHalf / 2; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffU, sum, offset);
      }
      if constexpr (kWarps == 1) {
        totals.gd = __shfl_sync(0xffffffffU, sum, 0, kLanes);
        totals.g = __shfl_sync(0xffffffffU, sum, kHalf, kLanes);
      } else {
        Publish(sum, low ? 0 : 1, turn);
      }
    } else {
      totals.gd = LanesSum(totals.gd);
      if constexpr (kWarps > 1) Publish(totals.gd, 0, turn);
    }
  }
  /// kWarps > 1: the totals, after a barrier that follows SumRow.
  template <RowKind kKind>
  __device__ void Receive(RowTotals<float>& totals, int turn) const {
    if constexpr (kWarps > 1) {
      totals.gd = Total(0, turn);
      if (kKind == RowKind::kLayer) totals.g = Total(1, turn);
    }
  }

 private:
  __device__ float* Slot(int value, int turn) const {
    return reinterpret_cast<float*>(shared) + (turn * 2 + value) * kWarps;
  }
  __device__ void Publish(float sum, int value, int turn) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads % kWarps;
    Slot(value, turn)[warp] = sum;
  }
  __device__ float Total(int value, int turn) const {
    const float* slot = Slot(value, turn);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += slot[i];
    return sum;
  }
};

}  // namespace norm_device
