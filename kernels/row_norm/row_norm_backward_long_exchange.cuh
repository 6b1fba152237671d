// Sums of a row over the warps of all blocks of a cluster: every warp sends its own to every block,
// and adds up what all have sent.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_device.h"
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

/// A warp sends the sums of row i + 4 after it has received those of row i + 2, which others sent
/// after they had received those of row i: with four turns nobody overwrites what is still to be
/// read.
template <RowKind kKind>
class LongExchange {
 public:
  static constexpr int kTurns = kExchangeTurns;
  static constexpr int kValues = kKind == RowKind::kLayer ? 2 : 1;

  /// `parts`: f32 [kTurns, kValues, RoundUp(warps of the cluster, 4)]; kLayer: then f64 [kTurns,
  /// warps of the cluster].
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
    if (lane < kTurns) arrived_[lane].Init(1);
    for (int i = lane; i < kTurns * kValues * 4; i += kWarpThreads) {
      const int place = stride_ - 4 + i % 4;
      if (place >= all_warps_) parts_[i / 4 * stride_ + place] = 0.0F;
    }
    TransferBarrier::FenceInit();
  }

  /// Hands this thread's sums over; `x` where `centred`, which all threads agree on.
  template <bool kMayCentre>
  __device__ void Send(float gd, float g, double x, bool centred, int turn) const {
    const int lane = threadIdx.x % kWarpThreads;
    TransferBarrier& arrived = arrived_[turn];
    float* const part = parts_ + turn * kValues * stride_ + part_;
    int bytes = kValues * static_cast<int>(sizeof(float));
    if constexpr (kKind == RowKind::kRms) {
      const float sum = Add<kWarpThreads>(gd);
      if (lane < blocks_) SendWordToPeer(part, arrived, lane, sum);
    } else {
      // Half the lanes go on with gd, half with g.
      constexpr int kHalf = kWarpThreads / 2;
      const bool upper = lane >= kHalf;
      const float sum = Add<kHalf>((upper ? g : gd) + Other(upper ? gd : g, kHalf));
      if (lane % kHalf < blocks_) {
        SendWordToPeer(part + lane / kHalf * stride_, arrived, lane % kHalf, sum);
      }
      if (kMayCentre && centred) {
        double total[1] = {x};
        LaneSum<kWarpThreads>(total);
        bytes += static_cast<int>(sizeof(double));
        if (lane < blocks_) {
          SendToPeer(WideParts(turn) + part_, arrived, lane,
                     static_cast<uint64_t>(__double_as_longlong(total[0])));
        }
      }
    }
    if (threadIdx.x == 0) arrived.ArriveExpecting(all_warps_ * bytes);
  }

  /// The totals of the i-th row, when they are there; d is the sum of x less the given mean.
  template <bool kMayCentre>
  __device__ RowTotals<float> Receive(bool centred, float mean, int64_t hidden_size, int i) const {
    const int turn = i % kTurns;
    arrived_[turn].Wait(i / kTurns & 1);
    const float* parts = parts_ + turn * kValues * stride_;
    const int lane = threadIdx.x % kWarpThreads;
    RowTotals<float> totals;
    if constexpr (kKind == RowKind::kRms) {
      totals.gd = Add<kWarpThreads>(PartSum(parts, lane, kWarpThreads));
    } else {
      constexpr int kHalf = kWarpThreads / 2;
      const float sum = Add<kHalf>(PartSum(parts + lane / kHalf * stride_, lane % kHalf, kHalf));
      totals.gd = __shfl_sync(kAllLanes, sum, 0);
      totals.g = __shfl_sync(kAllLanes, sum, kHalf);
      if (kMayCentre && centred) {
        const double* wide = WideParts(turn);
        double x[1] = {0.0};
        for (int k = lane; k < all_warps_; k += kWarpThreads) x[0] += wide[k];
        LaneSum<kWarpThreads>(x);
        totals.d = static_cast<float>(
            fma(-static_cast<double>(hidden_size), static_cast<double>(mean), x[0]));
      }
    }
    return totals;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  __device__ static float Other(float value, int distance) {
    return __shfl_xor_sync(kAllLanes, value, distance);
  }
  template <int kLanes>
  __device__ static float Add(float value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) value += Other(value, offset);
    return value;
  }
  __device__ double* WideParts(int turn) const {
    return reinterpret_cast<double*>(parts_ + kTurns * kValues * stride_) + turn * all_warps_;
  }
  __device__ float PartSum(const float* parts, int first, int step) const {
    const auto* fours = reinterpret_cast<const float4*>(parts);
    float sum = 0.0F;
#pragma unroll 1
    for (int i = first; i < stride_ / 4; i += step) {
      const float4 four = fours[i];
      sum += (four.x + four.y) + (four.z + four.w);
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
