// Sums of a row over the warps of all blocks of a cluster: every warp sends its own to every block,
// and adds up what all have sent.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// Sends 4 bytes; see SendToPeer.
__device__ inline void SendWordToPeer(const void* own, const TransferBarrier& own_barrier, int peer,
                                      float value) {
#if __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t place;
  uint32_t barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(address), "r"(peer));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(barrier)
      : "r"(own_barrier.Address()), "r"(peer));
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
#endif
}

/// Sums of a unit of rows. A warp sends those of unit i + 4 after it has received those of unit
/// i + 2, which others sent after they had received those of unit i: with four turns nobody
/// overwrites what is still to be read.
template <RowKind kKind, int kRows>
class LongExchange {
 public:
  static constexpr int kTurns = kExchangeTurns;
  static constexpr int kMostValues = LongRowSums(kKind) * kRows;

  /// `parts`: [kTurns, kMostValues, RoundUp(warps of the cluster, 4)].
  __device__ LongExchange(float* parts, TransferBarrier* arrived, int rank, int blocks, int warps)
      : parts_(parts),
        arrived_(arrived),
        blocks_(blocks),
        all_warps_(blocks * warps),
        stride_((blocks * warps + 3) / 4 * 4),
        part_(rank * warps + static_cast<int>(threadIdx.x) / kWarpThreads) {}

  /// By the threads of one warp; a barrier of the cluster follows.
  __device__ void Init() const {
    const int lane = threadIdx.x % kWarpThreads;
    if (lane < kTurns) arrived_[lane].Init(LongArrivals(blocks_, all_warps_));
    for (int i = lane; i < kTurns * kMostValues * 4; i += kWarpThreads) {
      const int place = stride_ - 4 + i % 4;
      if (place >= all_warps_) parts_[i / 4 * stride_ + place] = 0.0F;
    }
    TransferBarrier::FenceInit();
  }

  /// Sends this thread's part of some of the values, the first of which is `first`. The tree that
  /// adds up a value is the same among however many.
  template <int kValues>
  __device__ void Send(float (&values)[kValues], int first, int turn) const {
    constexpr int kLanes = kWarpThreads / kValues;  // that go on with one value
    const int lane = threadIdx.x % kWarpThreads;
    Halve<kWarpThreads / 2, kValues>(values);
    const float sum = Add<kLanes>(values[0]);
    float* const part = parts_ + (turn * kMostValues + first + lane / kLanes) * stride_ + part_;
    if (blocks_ == 1) {
      if (lane % kLanes == 0) *part = sum;
    } else {
#pragma unroll 1
      for (int peer = lane % kLanes; peer < blocks_; peer += kLanes) {
        SendWordToPeer(part, arrived_[turn], peer, sum);
      }
    }
  }
  /// After a warp has sent all its `values` values.
  __device__ void Arrive(int values, int turn) const {
    if (blocks_ == 1) {
      __syncwarp();
      if (threadIdx.x % kWarpThreads == 0) arrived_[turn].Arrive();
    } else if (threadIdx.x == 0) {
      arrived_[turn].ArriveExpecting(all_warps_ * values * static_cast<int>(sizeof(float)));
    }
  }

  /// Returns when the sums of unit i are there.
  __device__ void Wait(int i) const { arrived_[i % kTurns].Wait(i / kTurns & 1); }
  /// Totals of some values, in type A: lane v * 32 / kValues has value first + v.
  template <int kValues, typename A>
  __device__ A Totals(int first, int turn) const {
    constexpr int kLanes = kWarpThreads / kValues;
    const int lane = threadIdx.x % kWarpThreads;
    return Add<kLanes>(PartSum<A>(parts_ + (turn * kMostValues + first + lane / kLanes) * stride_,
                                  lane % kLanes, kLanes));
  }

  /// Both totals of a lane's row, of which it has one: lanes 16 and up the second.
  __device__ static void Spread(float total, float& a, float& b) {
    if constexpr (kKind == RowKind::kLayer) {
      const bool upper = (threadIdx.x & 16) != 0;
      const float other = __shfl_xor_sync(kAllLanes, total, 16);
      a = upper ? other : total;
      b = upper ? total : other;
    } else {
      a = total;
    }
  }
  /// All four, of which every eight lanes have another.
  __device__ static void Spread(float total, float& a, float& b, float& c, float& d) {
    float upper_half;  // of this quarter's lower or upper kind
    float lower_half;
    Spread(total, lower_half, upper_half);
    const bool upper = (threadIdx.x & 8) != 0;
    const float other_lower = __shfl_xor_sync(kAllLanes, lower_half, 8);
    const float other_upper = __shfl_xor_sync(kAllLanes, upper_half, 8);
    a = upper ? other_lower : lower_half;
    b = upper ? lower_half : other_lower;
    c = upper ? other_upper : upper_half;
    d = upper ? upper_half : other_upper;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  template <typename A>
  __device__ static A Other(A value, int distance) {
    return __shfl_xor_sync(kAllLanes, value, distance);
  }
  template <int kLanes, typename A>
  __device__ static A Add(A value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) value += Other(value, offset);
    return value;
  }
  /// Half the lanes go on with the first half of the values, half with the second, down to one.
  template <int kOffset, int kCount, int kValues>
  __device__ static void Halve(float (&values)[kValues]) {
    if constexpr (kCount > 1) {
      const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
      for (int k = 0; k < kCount / 2; ++k) {
        const float kept = upper ? values[k + kCount / 2] : values[k];
        const float given = upper ? values[k] : values[k + kCount / 2];
        values[k] = kept + Other(given, kOffset);
      }
      Halve<kOffset / 2, kCount / 2>(values);
    }
  }
  template <typename A>
  __device__ A PartSum(const float* parts, int first, int step) const {
    const auto* fours = reinterpret_cast<const float4*>(parts);
    A sum = 0;
#pragma unroll 1
    for (int i = first; i < stride_ / 4; i += step) {
      const float4 four = fours[i];
      sum += (static_cast<A>(four.x) + static_cast<A>(four.y)) +
             (static_cast<A>(four.z) + static_cast<A>(four.w));
    }
    return sum;
  }

  float* parts_;
  TransferBarrier* arrived_;
  int blocks_;
  int all_warps_;
  int stride_;
  int part_;
};

}  // namespace norm_device
