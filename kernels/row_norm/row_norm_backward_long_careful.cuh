// A long row whose sums or coefficients f32 does not hold: both passes again in f64, element by
// element, from the ring.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// As LongExchange, of at most 3 sums. Two turns: a warp sends the sums of a row after it has received those of the
/// one before, which others sent after they had read those before that.
struct LongCarefulExchange {
  double* parts;  // [2, warps of the cluster, 3]
  TransferBarrier* arrived;
  int rank;
  int blocks;
  int warps;

  template <int kSums>
  __device__ void Sum(double (&sums)[kSums], int turns) const {
    LaneSum<kWarpThreads>(sums);
    const int all_warps = blocks * warps;
    const int turn = turns % 2;
    double* const from = parts + turn * all_warps * 3;
    double* const own = from + (rank * warps + static_cast<int>(threadIdx.x) / kWarpThreads) * 3;
    const int lane = threadIdx.x % kWarpThreads;
    if (blocks == 1) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        if (lane == 0) own[k] = sums[k];
      }
      __syncwarp();
      if (lane == 0) arrived[turn].Arrive();
    } else {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        if (lane < blocks) {
          SendToPeer(own + k, arrived[turn], lane,
                     static_cast<uint64_t>(__double_as_longlong(sums[k])));
        }
      }
      if (threadIdx.x == 0) {
        arrived[turn].ArriveExpecting(all_warps * kSums * static_cast<int>(sizeof(double)));
      }
    }
    arrived[turn].Wait(turns / 2 & 1);
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      sums[k] = 0.0;
      for (int i = 0; i < all_warps; ++i) sums[k] += from[i * 3 + k];
    }
  }
};

/// Where a thread's part of a row lies.
struct LongRowPlace {
  uint32_t ring;   // its first granule
  int step;        // bytes from each of its granules to the next
  int64_t offset;  // of its first column in the tensors
  int column;      // in the row
  bool active;
  bool has_last;
};

/// What rounding took from the given mean, from the sum of x - mean in f64. Reached as
/// CarefulLongRow.
template <typename X, int kGranules>
__device__ __noinline__ float LostOfMean(LongCarefulExchange exchange, int turns, LongRowPlace row,
                                         float mean, float share) {
  constexpr int V = kWideElements<X>;
  const int granules = row.has_last ? kGranules : row.active ? kGranules - 1 : 0;
  double parts[2] = {};
#pragma unroll 1
  for (int g = 0; g < granules; ++g) {
    const auto x = LoadShared<X, V>(row.ring + g * row.step);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      parts[v % 2] += static_cast<double>(x.Wide(v)) - static_cast<double>(mean);
    }
  }
  double sum[1] = {parts[0] + parts[1]};
  exchange.Sum(sum, turns);
  return static_cast<float>(sum[0] * static_cast<double>(share));
}

/// Stores dx, and adds this thread's terms of dweight and dbias to `terms`, which begin as 0 if
/// is_first. Reached by all computing threads of the cluster.
template <typename X, RowKind kKind, int kGranules>
__device__ __noinline__ void CarefulLongRow(const RingBackwardParams& p, LongPlace place,
                                            LongCarefulExchange exchange, int turns,
                                            LongRowPlace row, GivenStats stats, bool is_first,
                                            float* terms) {
  constexpr int V = kWideElements<X>;
  constexpr int kElements = V * kGranules;
  const int granules = row.has_last ? kGranules : row.active ? kGranules - 1 : 0;
  const auto wide = [&](int tensor, int e) {
    const uint32_t address = row.ring + e / V * row.step + tensor * p.tensor_bytes +
                             e % V * static_cast<int>(sizeof(StorageOf<X>));
    StorageOf<X> value;
    if constexpr (sizeof(value) == 4) {
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    } else {
      uint16_t bits;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
      value = reinterpret_cast<const StorageOf<X>&>(bits);
    }
    return static_cast<double>(Element<X>::Widen(value));
  };
  const auto centred = [&](int e) {
    return wide(0, e) - (kKind == RowKind::kLayer ? static_cast<double>(stats.mean) : 0.0);
  };
  const auto column = [&](int e) { return e / V * place.threads * V + e % V; };
  const auto scale = [&](int e) {
    return static_cast<double>(ColumnScale<X>(p, row.column + column(e)));
  };
  double sums[3] = {};
#pragma unroll 1
  for (int e = 0; e < granules * V; ++e) {
    const double g = wide(1, e) * scale(e);
    sums[0] = fma(g, centred(e), sums[0]);
    sums[1] += g;
    sums[2] += centred(e);
  }
  exchange.Sum(sums, turns);
  const RowTotals<double> totals = {sums[0], sums[1], sums[2]};
  const RowCoefficients<double> coefficients =
      Coefficients<kKind>(totals, stats, 1.0 / static_cast<double>(p.hidden_size));
#pragma unroll 1
  for (int e = 0; e < kElements; ++e) {
    if (is_first) terms[e] = terms[kElements + e] = 0.0F;
    if (e >= granules * V) continue;
    const double d = centred(e) - coefficients.correction;
    const double dy = wide(1, e);
    const double scaled = dy * coefficients.rstd;
    double gradient = fma(scaled, scale(e), fma(coefficients.slope, d, coefficients.shift));
    if (p.ring_tensors > 2) gradient += wide(2, e);
    static_cast<StorageOf<X>*>(p.dx)[row.offset + column(e)] =
        Element<X>::Narrow(static_cast<float>(gradient));
    terms[e] += static_cast<float>(scaled * d);
    terms[kElements + e] += static_cast<float>(dy);
  }
}

}  // namespace norm_device
