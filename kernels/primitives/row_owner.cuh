// The threads that hold one row in registers: some lanes of a warp, one block, or a cluster of
// blocks (primitives/cluster_owner.cuh). Each says which granules a thread holds and adds values up
// over the row. Every thread gets the same bits, in an order that depends on the number of threads
// only.
//
// A warp of a block or cluster holds consecutive granules, so the distance between a thread's
// granules is a constant: one address per tensor and thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "primitives/row_reduce.cuh"

namespace norm_device {

/// The largest of `value` over aligned groups of kLanes lanes.
template <int kLanes>
__device__ inline uint32_t LaneMax(uint32_t value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}

/// kLanes lanes own a row; the other lanes of the block own other rows. All lanes of a warp must
/// reach Sum and Max together.
template <int kLanes>
class LaneRow {
 public:
  static constexpr int kLanesPerRow = kLanes;  // of one warp
  static constexpr bool kWholeBlock = false;
  static constexpr bool kHoldsPacked = false;
  struct Scratch {};

  __device__ explicit LaneRow(Scratch&) {}

  __device__ static int row_in_block() { return threadIdx.x / kLanes; }
  __device__ static int rows_per_block() { return blockDim.x / kLanes; }
  __device__ static int block_in_grid() { return blockIdx.x; }
  __device__ static int blocks_per_row() { return 1; }
  __device__ bool IsFirstThread() const { return threadIdx.x % kLanes == 0; }
  /// The first granule of this thread, and the distance to its next.
  template <int kGranules>
  __device__ int FirstGranule() const {
    return threadIdx.x % kLanes;
  }
  static constexpr int kGranuleStep = kLanes;

  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kLanes>(values);
  }
  __device__ uint32_t Max(uint32_t value) { return LaneMax<kLanes>(value); }
  /// Both in one exchange.
  __device__ void SumAndMax(float (&sum)[1], uint32_t& largest) {
    LaneSum<kLanes>(sum);
    largest = LaneMax<kLanes>(largest);
  }
  /// After `other`, a copy of this owner, was used in its place.
  __device__ void ContinueAfter(const LaneRow&) {}
  /// Whether `condition`, the same for all threads of a row, holds for a row whose threads must
  /// reach sums together with this one's.
  __device__ static bool AnyRow(bool condition) {
    return kLanes == kWarpThreads ? condition : __any_sync(0xffffffffU, condition) != 0;
  }
};

/// What BlockOwner and ClusterOwner have in common: where granules lie.
class WarpSpans {
 public:
  static constexpr int kLanesPerRow = kWarpThreads;
  static constexpr bool kWholeBlock = true;
  static constexpr bool kHoldsPacked = false;
  static constexpr int kGranuleStep = kWarpThreads;

  __device__ static bool AnyRow(bool condition) { return condition; }

 protected:
  template <int kGranules>
  __device__ static int First(int thread) {
    return thread / kWarpThreads * (kWarpThreads * kGranules) + thread % kWarpThreads;
  }
};

/// A block of up to kMaxWarps whole warps owns a row. All its threads must reach Sum and Max.
class BlockOwner : public WarpSpans {
 public:
  static constexpr int kMaxSums = 4;
  static constexpr int kMaxWarps = 16;
  /// Two buffers in turn: the barrier of one exchange separates the reads of the one before from
  /// the writes of the next.
  struct alignas(16) Scratch {
    double partial[2][kMaxSums][kMaxWarps];
  };

  __device__ explicit BlockOwner(Scratch& scratch) : scratch_(&scratch) {}

  __device__ static int row_in_block() { return 0; }
  __device__ static int rows_per_block() { return 1; }
  __device__ static int block_in_grid() { return blockIdx.x; }
  __device__ static int blocks_per_row() { return 1; }
  __device__ bool IsFirstThread() const { return threadIdx.x == 0; }
  __device__ void ContinueAfter(const BlockOwner& other) { turn_ = other.turn_; }
  template <int kGranules>
  __device__ int FirstGranule() const {
    return First<kGranules>(threadIdx.x);
  }

  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kWarpThreads>(values);
    SumOverWarps(values);
  }

  __device__ uint32_t Max(uint32_t value) {
    uint32_t values[1] = {LaneMax<kWarpThreads>(value)};
    Exchange<uint32_t, 1>(values, 0U);
    uint32_t largest = 0;
#pragma unroll 1
    for (int warp = 0; warp < Warps(); warp += 4) {
      const Four<uint32_t> four =
          *reinterpret_cast<const Four<uint32_t>*>(Part<uint32_t>(0) + warp);
      largest = max(max(largest, max(four.values[0], four.values[1])),
                    max(four.values[2], four.values[3]));
    }
    turn_ ^= 1;
    return largest;
  }

  /// Both in one exchange.
  __device__ void SumAndMax(float (&sum)[1], uint32_t& largest) {
    LaneSum<kWarpThreads>(sum);
    const uint32_t values[2] = {__float_as_uint(sum[0]), LaneMax<kWarpThreads>(largest)};
    Exchange<uint32_t, 2>(values, 0U);
    sum[0] = 0.0F;
    largest = 0;
#pragma unroll 1
    for (int warp = 0; warp < Warps(); warp += 4) {
      const Four<float> sums = *reinterpret_cast<const Four<float>*>(Part<float>(0) + warp);
      const Four<uint32_t> four =
          *reinterpret_cast<const Four<uint32_t>*>(Part<uint32_t>(1) + warp);
      sum[0] += (sums.values[0] + sums.values[1]) + (sums.values[2] + sums.values[3]);
      largest = max(max(largest, max(four.values[0], four.values[1])),
                    max(four.values[2], four.values[3]));
    }
    turn_ ^= 1;
  }

 private:
  template <typename C, int K>
  __device__ void SumOverWarps(C (&values)[K]) {
    static_assert(K <= kMaxSums);
    Exchange<C, K>(values, C(0));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      values[k] = SumOfFour(Part<C>(k));
      if (Warps() > 4) values[k] += SumOfFour(Part<C>(k) + 4);
      if (Warps() > 8) {
        values[k] += SumOfFour(Part<C>(k) + 8) + SumOfFour(Part<C>(k) + 12);
      }
    }
    turn_ ^= 1;
  }

  template <typename C>
  __device__ static C SumOfFour(const C* parts) {
    const Four<C> four = *reinterpret_cast<const Four<C>*>(parts);
    return (four.values[0] + four.values[1]) + (four.values[2] + four.values[3]);
  }

  template <typename T>
  __device__ T* Part(int k) const {
    return reinterpret_cast<T*>(scratch_->partial[turn_][k]);
  }

  /// Publishes one value per warp, and fillers up to the 4, 8 or 16 that are read.
  template <typename T, int K>
  __device__ void Exchange(const T (&values)[K], T filler) const {
    const int warp = threadIdx.x / kWarpThreads;
    const int lane = threadIdx.x % kWarpThreads;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) Part<T>(k)[warp] = values[k];
    } else if (warp == Warps() - 1 && warp + lane < PublishedParts()) {
#pragma unroll
      for (int k = 0; k < K; ++k) Part<T>(k)[warp + lane] = filler;
    }
    __syncthreads();
  }

  template <typename T>
  struct alignas(16) Four {
    T values[4];
  };

  __device__ static int Warps() { return blockDim.x / kWarpThreads; }
  __device__ static int PublishedParts() {
    const int warps = Warps();
    return warps <= 4 ? 4 : warps <= 8 ? 8 : kMaxWarps;
  }

  Scratch* scratch_;
  int turn_ = 0;
};

/// One that leaves registers for what else is under way.
class PackedBlockOwner : public BlockOwner {
 public:
  static constexpr bool kHoldsPacked = true;
  using BlockOwner::BlockOwner;
};

}  // namespace norm_device
