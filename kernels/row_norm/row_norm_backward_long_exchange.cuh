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
  static constexpr int kValues = kKind == RowKind::kLayer ? 3 : 1;

  /// `parts`: [kTurns, kValues, RoundUp(warps of the cluster, 4)].
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

  /// Hands this thread's sums over; `d` where `centred`, which all threads agree on.
  __device__ void Send(const RowTotals<float>& sums, bool centred, int turn) const {
    const int lane = threadIdx.x % kWarpThreads;
    TransferBarrier& arrived = arrived_[turn];
    float* const part = parts_ + turn * kValues * stride_ + part_;
    int values = 1;
    if constexpr (kKind == RowKind::kRms) {
      const float sum = Add<kWarpThreads>(sums.gd);
      if (lane < blocks_) SendWordToPeer(part, arrived, lane, sum);
    } else {
      const bool upper = (lane & 16) != 0;
      float sum = (upper ? sums.g : sums.gd) + Other(upper ? sums.gd : sums.g, 16);
      if (centred) {
        values = 3;
        const bool odd = (lane & 8) != 0;
        const float d = sums.d + Other(sums.d, 16);
        sum = Add<8>((odd ? d : sum) + Other(odd ? sum : d, 8));
        const int value = odd ? 2 : lane / 16;
        for (int peer = lane % 8; peer < blocks_ && lane < 24; peer += 8) {
          SendWordToPeer(part + value * stride_, arrived, peer, sum);
        }
      } else {
        values = 2;
        sum = Add<16>(sum);
        if (lane % 16 < blocks_) {
          SendWordToPeer(part + lane / 16 * stride_, arrived, lane % 16, sum);
        }
      }
    }
    if (threadIdx.x == 0) {
      arrived.ArriveExpecting(all_warps_ * values * static_cast<int>(sizeof(float)));
    }
  }

  /// The totals of the i-th row, when they are there.
  __device__ RowTotals<float> Receive(bool centred, int i) const {
    arrived_[i % kTurns].Wait(i / kTurns & 1);
    const float* parts = parts_ + i % kTurns * kValues * stride_;
    const int lane = threadIdx.x % kWarpThreads;
    RowTotals<float> totals;
    if constexpr (kKind == RowKind::kRms) {
      totals.gd = Add<32>(PartSum(parts, lane, 32));
    } else if (centred) {
      const float sum = Add<8>(lane < 24 ? PartSum(parts + lane / 8 * stride_, lane % 8, 8) : 0.0F);
      totals.gd = __shfl_sync(kAllLanes, sum, 0);
      totals.g = __shfl_sync(kAllLanes, sum, 8);
      totals.d = __shfl_sync(kAllLanes, sum, 16);
    } else {
      const float sum = Add<16>(PartSum(parts + lane / 16 * stride_, lane % 16, 16));
      totals.gd = __shfl_sync(kAllLanes, sum, 0);
      totals.g = __shfl_sync(kAllLanes, sum, 16);
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
