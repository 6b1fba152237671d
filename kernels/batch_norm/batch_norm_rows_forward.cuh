// BatchNorm training forward of channel-last tensors on sm_90, in one launch. All blocks are
// resident; each takes chunks of the rows of a slice of channels. (1) Warps read their chunks
// upwards through rings in shared memory and sum them. (2) Blocks exchange the sums through slots in
// global memory. (3) Warps read the same chunks downwards and write the output: first what is still
// in the ring, then what L2 was asked to keep, then the rest.
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
template <typename X, bool kBulk>
__device__ void AddChunk(const RowsGrid& grid, const RowsPlace& place,
                         const typename RowsRing<X, 1, kBulk>::Raw& raw, int chunk,
                         ChannelSums<X>& sums) {
  constexpr int kUnroll = RowsRing<X, 1, kBulk>::kUnroll;
  const bool active = place.Channel(grid) < grid.channels;
  const int rows_left = active ? static_cast<int>(grid.rows) - place.Row(grid, chunk) : 0;
  if (rows_left <= 0) return;
  if (sums.count == 0) sums.Begin(raw[0][0], chunk);
  if (rows_left > (kUnroll - 1) * place.lane_rows) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sums.Add(raw[0][u]);
    sums.count += kUnroll;
  } else {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (rows_left > u * place.lane_rows) {
        sums.Add(raw[0][u]);
        ++sums.count;
      }
    }
  }
}

/// The way up: a lane's sums of chunks from `begin` on.
template <typename X, bool kBulk>
__device__ void SumChunks(const RowsForwardParams& p, const RowsPlace& place,
                          RowsRing<X, 1, kBulk>& ring, int begin, int end, ChannelSums<X>& sums) {
  const RowsGrid& grid = p.grid;
  const StorageOf<X>* const x = static_cast<const StorageOf<X>*>(p.x);
  const int channel = place.Channel(grid);
  const bool active = channel < grid.channels;
  if (active && begin == 0) LoadReference<X>(x, channel, kBulk || p.wide, sums.reference);
  for (int chunk = begin; chunk < end; ++chunk) {
    typename RowsRing<X, 1, kBulk>::Raw raw;
    ring.ReadUp(chunk, raw);
    AddChunk<X, kBulk>(grid, place, raw, chunk, sums);
    if (sums.count >= ChannelSums<X>::kGroupRows || (sums.count > 0 && chunk == end - 1)) {
      sums.Flush(x, grid, place, channel, chunk);
    }
  }
}

/// The same for the chunks in registers.
template <typename X, bool kBulk>
__device__ void SumHeld(
    const RowsForwardParams& p, const RowsPlace& place,
    const typename RowsRing<X, 1, kBulk>::Raw (&held)[RowsRing<X, 1, kBulk>::kHeld],
    ChannelSums<X>& sums) {
  const RowsGrid& grid = p.grid;
  const StorageOf<X>* const x = static_cast<const StorageOf<X>*>(p.x);
  const int channel = place.Channel(grid);
#pragma unroll
  for (int h = 0; h < RowsRing<X, 1, kBulk>::kHeld; ++h) {
    AddChunk<X, kBulk>(grid, place, held[h], place.chunks + h, sums);
  }
  if (sums.count > 0) {
    sums.Flush(x, grid, place, channel, place.chunks + RowsRing<X, 1, kBulk>::kHeld - 1);
  }
}

/// What a thread that finishes a channel needs beside its sums.
template <typename X>
struct FinishInputs {
  double reference = 0.0;
  double share = 0.0;

  __device__ FinishInputs(const RowsForwardParams& p, int c) {
    if (c < 0) return;
    reference = LoadReference<X>(p.x, c);
    share = 1.0 / static_cast<double>(p.grid.rows);
  }
};

/// Statistics of a channel from its sums over all blocks.
template <typename X>
__device__ void FinishChannel(const RowsForwardParams& p, int c, const FinishInputs<X>& inputs,
                              const double2& sums, double2* area, bool stores) {
  const double offset = sums.x * inputs.share;
  const double mean = inputs.reference + offset;
  double variance = fma(-sums.x, offset, sums.y) * inputs.share;
  if (variance < 0.0) variance = 0.0;
  const float rstd = static_cast<float>(rsqrt(variance + p.eps));
  StoreTotals<1>(p.grid, p.exchange, area, 0, c, mean, rstd);
  if (!stores) return;
  if (p.mean != nullptr) p.mean[c] = static_cast<float>(mean);
  if (p.rstd != nullptr) p.rstd[c] = rstd;
  if (p.new_running_mean != nullptr) {
    const double n = static_cast<double>(p.grid.rows);
    const double running_mean = p.running_mean[c];
    const double running_var = p.running_var[c];
    p.new_running_mean[c] =
        static_cast<float>((1.0 - p.momentum) * running_mean + p.momentum * mean);
    p.new_running_var[c] = static_cast<float>((1.0 - p.momentum) * running_var +
                                              p.momentum * (variance * (n / (n - 1.0))));
  }
}

/// The output of a chunk.
template <typename X, bool kBulk>
__device__ void WriteChunk(const RowsForwardParams& p, const RowsPlace& place,
                           const typename RowsRing<X, 1, kBulk>::Raw& raw, int chunk,
                           const ForwardCoefficients& coefficients, uint64_t policy) {
  constexpr int kUnroll = RowsRing<X, 1, kBulk>::kUnroll;
  const RowsGrid& grid = p.grid;
  const int row = place.Row(grid, chunk);
  const int channel = place.Channel(grid);
  const int rows_left = channel < grid.channels ? static_cast<int>(grid.rows) - row : 0;
  StorageOf<X>* to =
      static_cast<StorageOf<X>*>(p.y) + channel + static_cast<int64_t>(row) * grid.channels;
  const int64_t step = static_cast<int64_t>(place.lane_rows) * grid.channels;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    float values[4];
    Quad<X>::Widen(raw[0][u], values);
#pragma unroll
    for (int c = 0; c < 4; ++c) values[c] = coefficients.Apply(values[c], c);
    if (rows_left > u * place.lane_rows) {
      StorePassing<X>(to + u * step, Quad<X>::Narrow(values), kBulk || p.wide, policy);
    }
  }
}

/// The chunks in registers.
template <typename X, bool kBulk>
__device__ void WriteHeld(
    const RowsForwardParams& p, const RowsPlace& place,
    const typename RowsRing<X, 1, kBulk>::Raw (&held)[RowsRing<X, 1, kBulk>::kHeld],
    const ForwardCoefficients& coefficients, uint64_t policy) {
#pragma unroll
  for (int h = 0; h < RowsRing<X, 1, kBulk>::kHeld; ++h) {
    WriteChunk<X, kBulk>(p, place, held[h], place.chunks + h, coefficients, policy);
  }
}

/// The way down. Chunks of two-byte elements that registers hold go first, which measures faster;
/// those of f32 last.
template <typename X, bool kBulk>
__device__ void WriteChunks(
    const RowsForwardParams& p, const RowsPlace& place, RowsRing<X, 1, kBulk>& ring,
    const typename RowsRing<X, 1, kBulk>::Raw (&held)[RowsRing<X, 1, kBulk>::kHeld],
    const ForwardCoefficients& coefficients) {
  constexpr bool kHeldFirst = sizeof(StorageOf<X>) == 2;
  const uint64_t policy = PassPolicy();
  if (kHeldFirst && place.extra != 0) {
    WriteHeld<X, kBulk>(p, place, held, coefficients, policy);
  }
  for (int chunk = place.chunks - 1; chunk >= 0; --chunk) {
    typename RowsRing<X, 1, kBulk>::Raw raw;
    ring.ReadDown(chunk, raw);
    WriteChunk<X, kBulk>(p, place, raw, chunk, coefficients, policy);
  }
  if (!kHeldFirst && place.extra != 0) {
    WriteHeld<X, kBulk>(p, place, held, coefficients, policy);
  }
}

template <typename X, bool kBulk>
__global__ void __launch_bounds__(kRowsWarps* kWarpThreads, 1)
    ForwardKernel(const __grid_constant__ RowsForwardParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const RowsPlace place(p.grid, RowsRing<X, 1, kBulk>::kHeld);
  double2* const area = RowsArea(memory);
  const RowsTensorMap* const maps[1] = {&p.x_map};
  const StorageOf<X>* const tensors[1] = {static_cast<const StorageOf<X>*>(p.x)};
  RowsRing<X, 1, kBulk> ring(p.grid, place, maps, tensors, p.wide, memory);
  typename RowsRing<X, 1, kBulk>::Raw held[RowsRing<X, 1, kBulk>::kHeld];
  if (place.extra != 0) {
#pragma unroll
    for (int h = 0; h < RowsRing<X, 1, kBulk>::kHeld; ++h) ring.Load(place.chunks + h, held[h]);
  }
  ClearSlots<1>(p.grid, p.exchange);
  auto arrival = cooperative_groups::this_grid().barrier_arrive();
  const int channel = place.Channel(p.grid);
  const bool active = channel < p.grid.channels;
  ChannelSums<X> sums;
  // Blocks wait for each other in the middle, while loads go on.
  const int half = place.chunks / 2;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    SumChunks(p, place, ring, part == 0 ? 0 : half, part == 0 ? half : place.chunks, sums);
    if (part == 0) {
      cooperative_groups::this_grid().barrier_wait(std::move(arrival));
      if (place.extra != 0) SumHeld<X, kBulk>(p, place, held, sums);
    }
  }
  double(*const channel_sums[2])[4] = {&sums.total, &sums.total_square};
  PublishSums<1>(p.grid, place, area, channel_sums, p.exchange);
  ForwardCoefficients coefficients;
  coefficients.LoadWeights<X>(p, channel, active);
  const int own = OwnChannel(p.grid, place);
  const FinishInputs<X> inputs(p, own);
  double2 gathered[1];
  GatherSums(p.grid, place, p.exchange, area, gathered);
  if (own >= 0) {
    FinishChannel(p, own, inputs, gathered[0], area, p.grid.shared_totals || place.block == 0);
  }
  RowsSlot totals[1][4];
  AwaitTotals(p.grid, place, p.exchange, channel, active, area, totals);
  coefficients.Take(totals[0]);
  WriteChunks(p, place, ring, held, coefficients);
#endif
}

}  // namespace rows
}  // namespace norm_device
