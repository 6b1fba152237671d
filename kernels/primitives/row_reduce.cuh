// Sums over the threads that share a row: one warp, or one block. Every thread gets the same bits,
// in an order that depends on the number of threads only. Totals are f64: the last steps of a long
// sum of f32 values are those whose rounding would show in a mean.
#pragma once

#include <cuda_runtime.h>

namespace norm_device {

inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxWarpsPerBlock = 16;

/// Butterfly over aligned groups of kLanes lanes: a + b and b + a are the same bits, so all lanes
/// agree.
template <int kLanes, typename C, int K>
__device__ void LaneSum(C (&values)[K]) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      values[k] += __shfl_xor_sync(0xffffffffU, values[k], offset);
    }
  }
}

/// The threads of one warp as the owners of a row; the other warps of the block own other rows.
class WarpRow {
 public:
  static constexpr bool kSharesBlock = true;
  struct Scratch {};

  __device__ int thread() const { return threadIdx.x % kWarpThreads; }
  __device__ int threads() const { return kWarpThreads; }
  __device__ int row_in_block() const { return threadIdx.x / kWarpThreads; }
  __device__ int rows_per_block() const { return blockDim.x / kWarpThreads; }

  /// Adds the threads' values up in type Step.
  template <typename Step, typename C, int K>
  __device__ void Sum(const C (&values)[K], double (&totals)[K], Scratch&) {
    Step steps[K];
#pragma unroll
    for (int k = 0; k < K; ++k) steps[k] = static_cast<Step>(values[k]);
    LaneSum<kWarpThreads>(steps);
#pragma unroll
    for (int k = 0; k < K; ++k) totals[k] = static_cast<double>(steps[k]);
  }
};

/// The threads of one block as the owners of a row. Sum must be reached by all of them.
class BlockRow {
 public:
  static constexpr bool kSharesBlock = false;
  static constexpr int kMaxSums = 3;
  /// Two buffers in turn: the barrier of one sum separates the reads of the one before from the
  /// writes of the next.
  struct Scratch {
    double partial[2][kMaxSums][kMaxWarpsPerBlock];
  };

  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ int row_in_block() const { return 0; }
  __device__ int rows_per_block() const { return 1; }

  /// Adds the threads' values up, in type Step within warps, in f64 over warps.
  template <typename Step, typename C, int K>
  __device__ void Sum(const C (&values)[K], double (&totals)[K], Scratch& scratch) {
    static_assert(K <= kMaxSums);
    Step steps[K];
#pragma unroll
    for (int k = 0; k < K; ++k) steps[k] = static_cast<Step>(values[k]);
    LaneSum<kWarpThreads>(steps);
    const int warps = blockDim.x / kWarpThreads;
    double(&partial)[kMaxSums][kMaxWarpsPerBlock] = scratch.partial[turn_];
    turn_ ^= 1;
    if (threadIdx.x % kWarpThreads == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        partial[k][threadIdx.x / kWarpThreads] = static_cast<double>(steps[k]);
      }
    }
    __syncthreads();
    const int warp = threadIdx.x % kMaxWarpsPerBlock;
#pragma unroll
    for (int k = 0; k < K; ++k) totals[k] = warp < warps ? partial[k][warp] : 0.0;
    LaneSum<kMaxWarpsPerBlock>(totals);
  }

 private:
  int turn_ = 0;
};

}  // namespace norm_device
