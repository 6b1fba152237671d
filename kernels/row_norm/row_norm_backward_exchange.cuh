// Sums over the warps of one block, or of the blocks of a cluster, that share rows.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

template <bool kCluster>
__device__ void SharingBlocksBarrier() {
#if __CUDA_ARCH__ >= 900
  if (kCluster) {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

/// The address of the same place in the shared memory of another block of the cluster.
__device__ inline uint32_t AddressOfPeer(uint32_t shared_address, int rank) {
  uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address), "r"(rank));
#endif
  return address;
}

/// A warp sends the sums of row i + 4 after it has received those of row i + 2, which others sent
/// after they had received those of row i: with four turns nobody overwrites what is still to be
/// read. Pipelined: mbarriers tell that all have sent; else a barrier of the block does.
/// kExactMean: the sum of x as a pair, of every row.
template <RowKind kKind, bool kExactMean, bool kCluster, bool kPipelined>
class WarpExchange {
  static_assert(kPipelined || !kCluster);
  static_assert(kKind == RowKind::kLayer || !kExactMean);

 public:
  static constexpr int kTurns = kExchangeTurns;

  __device__ WarpExchange(float* parts, StageBarrier* arrived, int cluster_blocks)
      : parts_(parts),
        arrived_(arrived),
        cluster_blocks_(cluster_blocks),
        all_warps_(static_cast<int>(blockDim.x) / kWarpThreads * cluster_blocks) {}

  /// One thread, before a barrier of all blocks that share rows.
  __device__ void Init() const {
    if (kPipelined) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) arrived_[turn].Init(kCluster ? 1 : all_warps_);
      StageBarrier::FenceInit();
    }
  }

  /// Hands this thread's sums over; `d` where the row is corrected, which all threads agree on.
  /// kExactMean: `x`, a sum less its beginning, in its place.
  __device__ void Send(const RowTotals<float>& sums, const SplitSum& x, bool corrected, int turn) {
    const int lane = threadIdx.x % kWarpThreads;
    if constexpr (kExactMean) {
      // A quarter of the lanes goes on with each of gd, g and the two of x.
      constexpr int kHalf = kWarpThreads / 2;
      constexpr int kQuarter = kWarpThreads / 4;
      const bool low = lane < kHalf;
      const float a = (low ? sums.gd : x.sum) + Other(low ? x.sum : sums.gd, kHalf);
      const float b = (low ? sums.g : x.lost) + Other(low ? x.lost : sums.g, kHalf);
      const bool first = lane % kHalf < kQuarter;
      const float sum = (first ? a : b) + Other(first ? b : a, kQuarter);
      Deliver(LanesSum<kQuarter>(sum), lane / kQuarter, lane % kQuarter, turn);
    } else if constexpr (kKind == RowKind::kLayer) {
      // Half the lanes go on with gd, half with g.
      constexpr int kHalf = kWarpThreads / 2;
      const bool low = lane < kHalf;
      const float other = __shfl_xor_sync(kAllLanes, low ? sums.g : sums.gd, kHalf);
      Deliver(LanesSum<kHalf>((low ? sums.gd : sums.g) + other), lane / kHalf, lane % kHalf, turn);
      if (corrected) {
        Deliver(LanesSum<kWarpThreads>(sums.d), kValues, lane, turn);
      }
    } else {
      Deliver(LanesSum<kWarpThreads>(sums.gd), 0, lane, turn);
    }
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      if (threadIdx.x == 0) {
        const int values = kValues + (!kExactMean && corrected ? 1 : 0);
        arrived_[turn].ArriveExpecting(all_warps_ * values * static_cast<int>(sizeof(float)));
      }
    } else if (kPipelined) {
      __syncwarp();
      if (lane == 0) arrived_[turn].Arrive();
    }
#endif
  }

  /// Pipelined: returns when all warps have sent their sums. `parity`: of the turn's round.
  __device__ void Wait(int turn, uint32_t parity) const { arrived_[turn].Wait(parity); }

  /// The totals, after Wait or a barrier of the block that follows Send.
  __device__ RowTotals<float> Receive(const GivenStats& stats, int64_t hidden_size, bool corrected,
                                      int turn) const {
    const int lane = threadIdx.x % kWarpThreads;
    // f32 holds the sums of rows of one block.
    using Total = std::conditional_t<kExactMean && kCluster, double, float>;
    const Total total = LanesSum<kValueLanes>(
        PartSum<Total>(lane / kValueLanes, lane % kValueLanes, kValueLanes, turn));
    float sum = static_cast<float>(total);
    if constexpr (kExactMean) {
      if (lane / kValueLanes == 2) {
        sum = SplitSum::Deviation(total, stats, SplitSum::Shift(stats), hidden_size);
      }
    }
    RowTotals<float> totals;
    totals.gd = kValues == 1 ? sum : __shfl_sync(kAllLanes, sum, 0);
    if (kKind == RowKind::kLayer) {
      totals.g = __shfl_sync(kAllLanes, sum, kValueLanes);
      if constexpr (kExactMean) {
        totals.d = __shfl_sync(kAllLanes, sum, 2 * kValueLanes) +
                   __shfl_sync(kAllLanes, sum, 3 * kValueLanes);
      } else if (corrected) {
        totals.d = LanesSum<kWarpThreads>(PartSum<float>(kValues, lane, kWarpThreads, turn));
      }
    }
    return totals;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;
  /// Sent of every row: gd, g, x as a pair.
  static constexpr int kValues = kExactMean ? 4 : kKind == RowKind::kLayer ? 2 : 1;
  static constexpr int kSlots = kKind == RowKind::kLayer ? 4 : 1;
  static constexpr int kValueLanes = kWarpThreads / kValues;  // that go on with one value

  __device__ static float Other(float value, int distance) {
    return __shfl_xor_sync(kAllLanes, value, distance);
  }

  template <int kLanes, typename A>
  __device__ static A LanesSum(A value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      value += __shfl_xor_sync(kAllLanes, value, offset);
    return value;
  }
  __device__ float* Part(int slot, int turn) const {
    return parts_ + (turn * kSlots + slot) * all_warps_;
  }
  template <typename A>
  __device__ A PartSum(int slot, int first, int step, int turn) const {
    const float* part = Part(slot, turn);
    A sum = first < all_warps_ ? static_cast<A>(part[first]) : A(0);
#pragma unroll 1
    for (int i = first + step; i < all_warps_; i += step) sum += static_cast<A>(part[i]);
    return sum;
  }
  /// To the block of rank `peer`, if there is one.
  __device__ void Deliver(float sum, int slot, int peer, int turn) const {
    if (peer >= (kCluster ? cluster_blocks_ : 1)) return;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    float* part = Part(slot, turn) + warp;
    if constexpr (!kCluster) {
      *part = sum;
    } else {
#if __CUDA_ARCH__ >= 900
      const int rank = static_cast<int>(blockIdx.x) % cluster_blocks_;
      part += rank * (static_cast<int>(blockDim.x) / kWarpThreads);
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              AddressOfPeer(SharedAddress(part), peer)),
          "r"(__float_as_uint(sum)), "r"(AddressOfPeer(SharedAddress(arrived_[turn].state()), peer))
          : "memory");
#endif
    }
  }

  float* parts_;
  StageBarrier* arrived_;
  int cluster_blocks_;
  int all_warps_;
};

/// The threads that share a row, for CarefulRow. `parts`: [kSums, warps of the block], of at most 3.
template <bool kCluster>
struct SharingBlocks {
  double* parts;
  int cluster_blocks;

  template <int kSums>
  __device__ void Sum(double (&sums)[kSums]) const {
    LaneSum<kWarpThreads>(sums);
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      if (threadIdx.x % kWarpThreads == 0) parts[k * warps + warp] = sums[k];
      sums[k] = 0.0;
    }
    SharingBlocksBarrier<kCluster>();
#pragma unroll 1
    for (int rank = 0; rank < (kCluster ? cluster_blocks : 1); ++rank) {
#pragma unroll 1
      for (int i = 0; i < warps; ++i) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k] += Part(parts + k * warps + i, rank);
      }
    }
    SharingBlocksBarrier<kCluster>();
  }

 private:
  __device__ static double Part(const double* part, int rank) {
    double value = 0.0;
    if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
      asm volatile("ld.shared::cluster.f64 %0, [%1];"
                   : "=d"(value)
                   : "r"(AddressOfPeer(SharedAddress(part), rank))
                   : "memory");
#endif
    } else {
      value = *part;
    }
    return value;
  }
};

}  // namespace norm_device
