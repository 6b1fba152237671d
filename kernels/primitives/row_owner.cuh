// The threads that hold one row in registers: some lanes of a warp, one block, or a cluster of
// blocks. Each says which granules a thread holds and adds values up over the row. Every thread
// gets the same bits, in an order that depends on the number of threads only.
//
// A warp of a block or cluster holds consecutive granules, so the distance between a thread's
// granules is a constant: one address per tensor and thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "primitives/cluster.cuh"
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

/// LaneSum of two values of different types at once.
template <int kLanes, typename A, typename B>
__device__ void LaneSumBoth(A& a, B& b) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const A other_a = __shfl_xor_sync(0xffffffffU, a, offset);
    const B other_b = __shfl_xor_sync(0xffffffffU, b, offset);
    a += other_a;
    b += other_b;
  }
}

/// kLanes lanes own a row; the other lanes of the block own other rows. All lanes of a warp must
/// reach Sum and Max together.
template <int kLanes>
class LaneRow {
 public:
  static constexpr int kLanesPerRow = kLanes;  // of one warp
  static constexpr bool kWholeBlock = false;
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
  /// Adds up in the values' own types.
  template <typename A, typename B>
  __device__ void SumBoth(A& a, B& b) {
    LaneSumBoth<kLanes>(a, b);
  }
  __device__ uint32_t Max(uint32_t value) { return LaneMax<kLanes>(value); }
  /// Both in one exchange.
  __device__ void SumAndMax(float (&sum)[1], uint32_t& largest) {
    LaneSum<kLanes>(sum);
    largest = LaneMax<kLanes>(largest);
  }
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
  static constexpr int kGranuleStep = kWarpThreads;
  static constexpr int kMaxWarps = 32;

  __device__ static bool AnyRow(bool condition) { return condition; }

 protected:
  template <int kGranules>
  __device__ static int First(int thread) {
    return thread / kWarpThreads * (kWarpThreads * kGranules) + thread % kWarpThreads;
  }
};

/// A block of any number of whole warps owns a row. All its threads must reach Sum and Max.
class BlockOwner : public WarpSpans {
 public:
  static constexpr int kMaxSums = 2;
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
  template <int kGranules>
  __device__ int FirstGranule() const {
    return First<kGranules>(threadIdx.x);
  }

  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kWarpThreads>(values);
    SumOverWarps(values);
  }

  /// Adds up in the values' own types within warps, in A over warps.
  template <typename A, typename B>
  __device__ void SumBoth(A& a, B& b) {
    LaneSumBoth<kWarpThreads>(a, b);
    A both[2] = {a, static_cast<A>(b)};
    SumOverWarps(both);
    a = both[0];
    b = static_cast<B>(both[1]);
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
    for (int k = 0; k < K; ++k) values[k] = C(0);
#pragma unroll 1
    for (int warp = 0; warp < Warps(); warp += 4) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const Four<C> four = *reinterpret_cast<const Four<C>*>(Part<C>(k) + warp);
        values[k] += (four.values[0] + four.values[1]) + (four.values[2] + four.values[3]);
      }
    }
    turn_ ^= 1;
  }

  template <typename T>
  __device__ T* Part(int k) const {
    return reinterpret_cast<T*>(scratch_->partial[turn_][k]);
  }

  /// Publishes one value per warp, and fillers up to a multiple of four.
  template <typename T, int K>
  __device__ void Exchange(const T (&values)[K], T filler) const {
    const int warp = threadIdx.x / kWarpThreads;
    const int lane = threadIdx.x % kWarpThreads;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) Part<T>(k)[warp] = values[k];
    } else if (lane < 4 && warp == Warps() - 1 && (warp + lane) / 4 == warp / 4) {
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

  Scratch* scratch_;
  int turn_ = 0;
};

/// A cluster of blocks owns a row; partial sums travel through distributed shared memory. All its
/// threads must reach Sum and Max. Compute capability 9.0.
class ClusterOwner : public WarpSpans {
 public:
  static constexpr int kMaxSums = 2;
  static constexpr int kMaxParts = 256;  // warps of a cluster
  struct alignas(16) Scratch {
    double partial[2][kMaxSums][kMaxParts];
  };

  __device__ explicit ClusterOwner(Scratch& scratch)
      : scratch_(scratch), rank_(ClusterRank()), blocks_(ClusterBlocks()) {
    // Nobody may write to a peer's shared memory before the peer has started.
    ClusterArrive();
  }

  __device__ static int row_in_block() { return 0; }
  __device__ static int rows_per_block() { return 1; }
  __device__ int block_in_grid() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks_per_row() const { return blocks_; }
  __device__ bool IsFirstThread() const { return threadIdx.x == 0 && rank_ == 0; }
  template <int kGranules>
  __device__ int FirstGranule() const {
    return First<kGranules>(rank_ * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
  }

  /// Adds up in C within warps, in f64 over warps.
  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kWarpThreads>(values);
    double wide[K];
#pragma unroll
    for (int k = 0; k < K; ++k) wide[k] = static_cast<double>(values[k]);
    SumOverWarps(wide);
#pragma unroll
    for (int k = 0; k < K; ++k) values[k] = static_cast<C>(wide[k]);
  }

  template <typename A, typename B>
  __device__ void SumBoth(A& a, B& b) {
    LaneSumBoth<kWarpThreads>(a, b);
    double both[2] = {static_cast<double>(a), static_cast<double>(b)};
    SumOverWarps(both);
    a = static_cast<A>(both[0]);
    b = static_cast<B>(both[1]);
  }

  __device__ uint32_t Max(uint32_t value) {
    const double values[1] = {static_cast<double>(LaneMax<kWarpThreads>(value))};
    Exchange(values);
    uint32_t largest = 0;
    for (int part = threadIdx.x % kWarpThreads; part < Parts(); part += kWarpThreads) {
      largest = max(largest, static_cast<uint32_t>(scratch_.partial[turn_][0][part]));
    }
    turn_ ^= 1;
    return LaneMax<kWarpThreads>(largest);
  }

 private:
  template <int K>
  __device__ void SumOverWarps(double (&values)[K]) {
    static_assert(K <= kMaxSums);
    Exchange(values);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      values[k] = 0.0;
      for (int part = threadIdx.x % kWarpThreads; part < Parts(); part += kWarpThreads) {
        values[k] += scratch_.partial[turn_][k][part];
      }
    }
    LaneSum<kWarpThreads>(values);
    turn_ ^= 1;
  }

  __device__ int Parts() const { return blocks_ * static_cast<int>(blockDim.x / kWarpThreads); }

  /// Publishes one value per warp to every block of the cluster. Its barrier also separates the
  /// reads of the exchange before from the writes of the next.
  template <int K>
  __device__ void Exchange(const double (&values)[K]) {
    if (!peers_started_) {
      ClusterWait();
      peers_started_ = true;
    }
    const int lane = threadIdx.x % kWarpThreads;
    const int part = rank_ * static_cast<int>(blockDim.x / kWarpThreads) +
                     static_cast<int>(threadIdx.x / kWarpThreads);
    if (lane < blocks_) {
#pragma unroll
      for (int k = 0; k < K; ++k) StoreToPeer(&scratch_.partial[turn_][k][part], lane, values[k]);
    }
    __syncwarp();  // the cluster's barrier takes whole warps
    ClusterArrive();
    ClusterWait();
  }

  Scratch& scratch_;
  int rank_;
  int blocks_;
  int turn_ = 0;
  bool peers_started_ = false;
};

}  // namespace norm_device
