// Sums over the threads that share a row: one warp, or one block. Every thread gets the same bits,
// in an order that depends on the number of threads only.
#pragma once

#include <cuda_runtime.h>

namespace norm_device {

inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxWarpsPerBlock = 16;

/// Butterfly: a + b and b + a are the same bits, so all lanes agree.
template <typename C, int K>
__device__ void WarpSum(C (&values)[K]) {
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
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
  template <typename C>
  struct Scratch {};

  template <typename C>
  __device__ explicit WarpRow(Scratch<C>&) {}

  __device__ int thread() const { return threadIdx.x % kWarpThreads; }
  __device__ int threads() const { return kWarpThreads; }
  __device__ int row_in_block() const { return threadIdx.x / kWarpThreads; }
  __device__ int rows_per_block() const { return blockDim.x / kWarpThreads; }

  template <typename C, int K>
  __device__ void Sum(C (&values)[K], Scratch<C>&) {
    WarpSum(values);
  }
};

/// The threads of one block as the owners of a row. Sum must be reached by all of them.
class BlockRow {
 public:
  static constexpr bool kSharesBlock = false;
  static constexpr int kMaxSums = 3;
  /// Two buffers in turn: the barrier of one sum separates the reads of the one before from the
  /// writes of the next.
  template <typename C>
  struct Scratch {
    C partial[2][kMaxSums][kMaxWarpsPerBlock];
  };

  template <typename C>
  __device__ explicit BlockRow(Scratch<C>&) {}

  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ int row_in_block() const { return 0; }
  __device__ int rows_per_block() const { return 1; }

  template <typename C, int K>
  __device__ void Sum(C (&values)[K], Scratch<C>& scratch) {
    static_assert(K <= kMaxSums);
    WarpSum(values);
    const int warp = threadIdx.x / kWarpThreads;
    const int warps = blockDim.x / kWarpThreads;
    C(&partial)[kMaxSums][kMaxWarpsPerBlock] = scratch.partial[turn_];
    turn_ ^= 1;
    if (threadIdx.x % kWarpThreads == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) partial[k][warp] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) values[k] = partial[k][0];
    for (int w = 1; w < warps; ++w) {
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] += partial[k][w];
    }
  }

 private:
  int turn_ = 0;
};

}  // namespace norm_device
