// BatchNorm training backward of channel-last tensors on sm_90, in one launch: as the forward
// kernel, with dy and x side by side in the rings.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "batch_norm/batch_norm_rows_coefficients.cuh"
#include "batch_norm/batch_norm_rows_exchange.cuh"
#include "batch_norm/batch_norm_rows_ring.cuh"
#include "batch_norm/batch_norm_rows_sums.cuh"
#include "primitives/moments.cuh"

namespace norm_device {
namespace rows {

/// Adds a chunk to a lane's sums.
template <typename X, bool kBulk, bool kRecompute>
__device__ void AddChunk(const RowsGrid& grid, const RowsPlace& place,
                         const typename RowsRing<X, 2, kBulk>::Raw& raw, int chunk,
                         GradientSums<X, kRecompute>& sums) {
  constexpr int kUnroll = RowsRing<X, 2, kBulk>::kUnroll;
  const bool active = place.Channel(grid) < grid.channels;
  const int rows_left = active ? static_cast<int>(grid.rows) - place.Row(grid, chunk) : 0;
  if (rows_left <= 0) return;
  if (sums.count == 0) sums.Begin(raw[1][0], chunk);
  if (rows_left > (kUnroll - 1) * place.lane_rows) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sums.Add(raw[0][u], raw[1][u]);
    sums.count += kUnroll;
  } else {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (rows_left > u * place.lane_rows) {
        sums.Add(raw[0][u], raw[1][u]);
        ++sums.count;
      }
    }
  }
}

/// The way up: a lane's sums of chunks from `begin` on.
template <typename X, bool kBulk, bool kRecompute>
__device__ void SumChunks(const RowsBackwardParams& p, const RowsPlace& place,
                          RowsRing<X, 2, kBulk>& ring, int begin, int end,
                          GradientSums<X, kRecompute>& sums) {
  const RowsGrid& grid = p.grid;
  const StorageOf<X>* const all_dy = static_cast<const StorageOf<X>*>(p.dy);
  const StorageOf<X>* const all_x = static_cast<const StorageOf<X>*>(p.x);
  const int channel = place.Channel(grid);
  for (int chunk = begin; chunk < end; ++chunk) {
    typename RowsRing<X, 2, kBulk>::Raw raw;
    ring.ReadUp(chunk, raw);
    AddChunk<X, kBulk, kRecompute>(grid, place, raw, chunk, sums);
    if (sums.count >= GradientSums<X, kRecompute>::kGroupRows ||
        (sums.count > 0 && chunk == end - 1)) {
      sums.Flush(all_dy, all_x, kBulk || p.wide, grid, place, channel, chunk);
    }
  }
}

/// The same for the chunks in registers.
template <typename X, bool kBulk, bool kRecompute>
__device__ void SumHeld(
    const RowsBackwardParams& p, const RowsPlace& place,
    const typename RowsRing<X, 2, kBulk>::Raw (&held)[RowsRing<X, 2, kBulk>::kHeld],
    GradientSums<X, kRecompute>& sums) {
  const RowsGrid& grid = p.grid;
  const StorageOf<X>* const all_dy = static_cast<const StorageOf<X>*>(p.dy);
  const StorageOf<X>* const all_x = static_cast<const StorageOf<X>*>(p.x);
  const int channel = place.Channel(grid);
#pragma unroll
  for (int h = 0; h < RowsRing<X, 2, kBulk>::kHeld; ++h) {
    AddChunk<X, kBulk, kRecompute>(grid, place, held[h], place.chunks + h, sums);
  }
  if (sums.count > 0) {
    sums.Flush(all_dy, all_x, kBulk || p.wide, grid, place, channel,
               place.chunks + RowsRing<X, 2, kBulk>::kHeld - 1);
  }
}

/// What a thread that finishes a channel needs beside its sums.
template <typename X, bool kRecompute>
struct GradientInputs {
  double reference = 0.0;
  double share = 0.0;
  float rstd = 0.0F;

  __device__ GradientInputs(const RowsBackwardParams& p, int c) {
    if (c < 0) return;
    reference = LoadReference<X>(p.x, c);
    share = 1.0 / static_cast<double>(p.grid.rows);
    if (!kRecompute) rstd = p.given_rstd[c];
  }
};

/// Statistics and gradients of a channel from its sums over all blocks: of dy and dy * d, of d and
/// d * d.
template <typename X, bool kRecompute>
__device__ void FinishChannel(const RowsBackwardParams& p, int c,
                              const GradientInputs<X, kRecompute>& inputs, const double2 (&sums)[2],
                              double2* area, bool stores) {
  const double offset = sums[1].x * inputs.share;
  float rstd = inputs.rstd;
  if (kRecompute) {
    double variance = fma(-sums[1].x, offset, sums[1].y) * inputs.share;
    if (variance < 0.0) variance = 0.0;
    rstd = static_cast<float>(rsqrt(variance + p.eps));
  }
  const double dweight = static_cast<double>(rstd) * fma(-offset, sums[0].x, sums[0].y);
  StoreTotals<2>(p.grid, p.exchange, area, 0, c, inputs.reference + offset, rstd);
  StoreTotals<2>(p.grid, p.exchange, area, 1, c, sums[0].x * inputs.share,
                 static_cast<float>(dweight * inputs.share));
  if (!stores) return;
  StoreWeight<X>(p.dweight, p.f32_weights, c, static_cast<float>(dweight));
  StoreWeight<X>(p.dbias, p.f32_weights, c, static_cast<float>(sums[0].x));
}

/// The output of a chunk.
template <typename X, bool kBulk>
__device__ void WriteChunk(const RowsBackwardParams& p, const RowsPlace& place,
                           const typename RowsRing<X, 2, kBulk>::Raw& raw, int chunk,
                           const BackwardCoefficients& coefficients, uint64_t policy) {
  constexpr int kUnroll = RowsRing<X, 2, kBulk>::kUnroll;
  const RowsGrid& grid = p.grid;
  const int row = place.Row(grid, chunk);
  const int channel = place.Channel(grid);
  const int rows_left = channel < grid.channels ? static_cast<int>(grid.rows) - row : 0;
  StorageOf<X>* to =
      static_cast<StorageOf<X>*>(p.dx) + channel + static_cast<int64_t>(row) * grid.channels;
  const int64_t step = static_cast<int64_t>(place.lane_rows) * grid.channels;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    float gradients[4];
    float values[4];
    Quad<X>::Widen(raw[0][u], gradients);
    Quad<X>::Widen(raw[1][u], values);
#pragma unroll
    for (int c = 0; c < 4; ++c) values[c] = coefficients.Apply(gradients[c], values[c], c);
    if (rows_left > u * place.lane_rows) {
      StorePassing<X>(to + u * step, Quad<X>::Narrow(values), kBulk || p.wide, policy);
    }
  }
}

/// The way down.
template <typename X, bool kBulk>
__device__ void WriteChunks(
    const RowsBackwardParams& p, const RowsPlace& place, RowsRing<X, 2, kBulk>& ring,
    const typename RowsRing<X, 2, kBulk>::Raw (&held)[RowsRing<X, 2, kBulk>::kHeld],
    const BackwardCoefficients& coefficients) {
  const uint64_t policy = PassPolicy();
  for (int chunk = place.chunks - 1; chunk >= 0; --chunk) {
    typename RowsRing<X, 2, kBulk>::Raw raw;
    ring.ReadDown(chunk, raw);
    WriteChunk<X, kBulk>(p, place, raw, chunk, coefficients, policy);
  }
  if (place.extra == 0) return;
#pragma unroll
  for (int h = 0; h < RowsRing<X, 2, kBulk>::kHeld; ++h) {
    WriteChunk<X, kBulk>(p, place, held[h], place.chunks + h, coefficients, policy);
  }
}

template <typename X, bool kBulk, bool kRecompute>
__global__ void __launch_bounds__(kRowsWarps* kWarpThreads, 1)
    BackwardKernel(const __grid_constant__ RowsBackwardParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const RowsPlace place(p.grid, RowsRing<X, 2, kBulk>::kHeld);
  double2* const area = RowsArea(memory);
  const RowsTensorMap* const maps[2] = {&p.dy_map, &p.x_map};
  const StorageOf<X>* const tensors[2] = {static_cast<const StorageOf<X>*>(p.dy),
                                          static_cast<const StorageOf<X>*>(p.x)};
  RowsRing<X, 2, kBulk> ring(p.grid, place, maps, tensors, p.wide, memory);
  typename RowsRing<X, 2, kBulk>::Raw held[RowsRing<X, 2, kBulk>::kHeld];
  if (place.extra != 0) {
#pragma unroll
    for (int h = 0; h < RowsRing<X, 2, kBulk>::kHeld; ++h) ring.Load(place.chunks + h, held[h]);
  }
  ClearSlots<2>(p.grid, p.exchange);
  auto arrival = cooperative_groups::this_grid().barrier_arrive();
  const int channel = place.Channel(p.grid);
  const bool active = channel < p.grid.channels;
  GradientSums<X, kRecompute> sums;
  // Blocks wait for each other in the middle, while loads go on.
  const int half = place.chunks / 2;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    SumChunks(p, place, ring, part == 0 ? 0 : half, part == 0 ? half : place.chunks, sums);
    if (part == 0) {
      cooperative_groups::this_grid().barrier_wait(std::move(arrival));
      if (place.extra != 0) SumHeld<X, kBulk, kRecompute>(p, place, held, sums);
    }
  }
  double(*const channel_sums[4])[4] = {&sums.total_dy, &sums.total_dyd, &sums.total_d,
                                       &sums.total_square};
  PublishSums<2>(p.grid, place, area, channel_sums, p.exchange);
  BackwardCoefficients coefficients;
  coefficients.LoadWeights<X>(p, channel, active);
  const int own = OwnChannel(p.grid, place);
  const GradientInputs<X, kRecompute> inputs(p, own);
  double2 gathered[2];
  GatherSums(p.grid, place, p.exchange, area, gathered);
  if (own >= 0) {
    FinishChannel(p, own, inputs, gathered, area, p.grid.shared_totals || place.block == 0);
  }
  RowsSlot totals[2][4];
  AwaitTotals(p.grid, place, p.exchange, channel, active, area, totals);
  coefficients.Take(totals);
  WriteChunks(p, place, ring, held, coefficients);
#endif
}

}  // namespace rows
}  // namespace norm_device
