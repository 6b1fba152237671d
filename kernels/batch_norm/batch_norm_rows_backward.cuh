// BatchNorm training backward of channel-last tensors on sm_90, in one launch: as the forward
// kernel, with dy and x side by side in the ring.
#pragma once

#include "batch_norm/batch_norm_rows_exchange.cuh"
#include "batch_norm/batch_norm_rows_ring.cuh"
#include "primitives/moments.cuh"

namespace norm_device {
namespace rows {

/// Sums of dy, dy * d, d and, if kRecompute, d * d over a thread's rows, d = x - reference, per
/// channel of its granule. Groups of rows are summed in f32 relative to their first x, groups in
/// f64.
template <typename X, bool kRecompute>
struct GradientSums {
  static constexpr int kGroupRows = 32;
  float centre[4];
  float dy[4];
  float dyd[4];
  float d[4];
  float square[4];
  double total_dy[4] = {};
  double total_dyd[4] = {};
  double total_d[4] = {};
  double total_square[4] = {};
  int count = 0;  // rows of the group
  int64_t first_row = 0;

  __device__ void Begin(const QuadOf<X>& x, int64_t row) {
    Quad<X>::Widen(x, centre);
    first_row = row;
#pragma unroll
    for (int c = 0; c < 4; ++c) dy[c] = dyd[c] = d[c] = square[c] = 0.0F;
  }
  __device__ void Add(const QuadOf<X>& raw_dy, const QuadOf<X>& raw_x) {
    float gradients[4];
    float values[4];
    Quad<X>::Widen(raw_dy, gradients);
    Quad<X>::Widen(raw_x, values);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float distance = values[c] - centre[c];
      dy[c] += gradients[c];
      dyd[c] = fmaf(gradients[c], distance, dyd[c]);
      d[c] += distance;
      if (kRecompute) square[c] = fmaf(distance, distance, square[c]);
    }
  }
  /// Moves the group into the totals. Where f32 did not hold its products the group is read again.
  __device__ void Flush(const StorageOf<X>* all_dy, const StorageOf<X>* all_x, bool wide,
                        int channels, int channel, int lanes) {
    const double n = count;
    float reference[4];
    LoadReference<X>(all_x, channel, wide, reference);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (isfinite(dyd[c]) && isfinite(dy[c]) && (!kRecompute || isfinite(square[c]))) {
        const double offset = static_cast<double>(centre[c]) - static_cast<double>(reference[c]);
        const double s = d[c];
        total_dy[c] += static_cast<double>(dy[c]);
        total_dyd[c] += fma(offset, static_cast<double>(dy[c]), static_cast<double>(dyd[c]));
        total_d[c] += fma(n, offset, s);
        if (kRecompute) {
          total_square[c] += fma(offset, fma(n, offset, s + s), static_cast<double>(square[c]));
        }
      } else {
        const int64_t stride = static_cast<int64_t>(lanes) * channels;
        int64_t at = first_row * channels + channel + c;
#pragma unroll 1
        for (int i = 0; i < count; ++i, at += stride) {
          const double gradient = static_cast<double>(Element<X>::Widen(all_dy[at]));
          const double distance =
              static_cast<double>(Element<X>::Widen(all_x[at])) - static_cast<double>(reference[c]);
          total_dy[c] += gradient;
          total_dyd[c] = fma(gradient, distance, total_dyd[c]);
          total_d[c] += distance;
          if (kRecompute) total_square[c] = fma(distance, distance, total_square[c]);
        }
      }
    }
    count = 0;
  }
};

/// A summing thread's chunks of all items.
template <typename X, bool kBulk, bool kRecompute>
__device__ void SumItems(const RowsBackwardParams& p, const RowsPlace& place,
                         const RowsShared<X, 2>& shared) {
  constexpr int kUnroll = RowsShared<X, 2>::kUnroll;
  const RowsGrid& grid = p.grid;
  const bool wide = kBulk || p.wide;
  const StorageOf<X>* const all_dy = static_cast<const StorageOf<X>*>(p.dy);
  const StorageOf<X>* const all_x = static_cast<const StorageOf<X>*>(p.x);
  const int64_t part_row = static_cast<int64_t>(place.first_chunk) * grid.chunk_rows + place.lane;
  RingCursor cursor;
  for (int item = 0; item < grid.items; ++item) {
    const int channel = item * grid.slice_channels + place.column * kRowsGranule;
    const bool active = channel < grid.channels;
    GradientSums<X, kRecompute> sums;
    int64_t row = part_row;
    for (int chunk = 0; chunk < place.chunks; ++chunk, row += grid.chunk_rows) {
      Wait(&shared.full[cursor.stage], cursor.parity);
      const int rows_left = active ? static_cast<int>(min(grid.rows - row, int64_t{1} << 30)) : 0;
      QuadOf<X> dy[kUnroll];
      QuadOf<X> x[kUnroll];
      if (kBulk) {
        const QuadOf<X>* from_dy = shared.Chunk(cursor.stage, 0) + threadIdx.x % kRowsThreads;
        const QuadOf<X>* from_x = shared.Chunk(cursor.stage, 1) + threadIdx.x % kRowsThreads;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          dy[u] = from_dy[u * kRowsThreads];
          x[u] = from_x[u * kRowsThreads];
        }
      } else {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (rows_left > u * place.lanes) {
            const int64_t offset = (row + u * place.lanes) * grid.channels + channel;
            dy[u] = LoadQuad<X>(all_dy + offset, wide);
            x[u] = LoadQuad<X>(all_x + offset, wide);
          }
        }
      }
      ArriveWarp(&shared.empty[cursor.stage]);
      cursor.Next(grid.stages);
      if (item > 0 && chunk < place.chunks - place.kept) SkipChunk(shared, cursor, grid.stages);
      if (rows_left > 0) {
        if (sums.count == 0) sums.Begin(x[0], row);
        if (rows_left > (kUnroll - 1) * place.lanes) {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) sums.Add(dy[u], x[u]);
          sums.count += kUnroll;
        } else {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if (rows_left > u * place.lanes) {
              sums.Add(dy[u], x[u]);
              ++sums.count;
            }
          }
        }
      }
      if (sums.count >= GradientSums<X, kRecompute>::kGroupRows ||
          (sums.count > 0 && chunk == place.chunks - 1)) {
        sums.Flush(all_dy, all_x, wide, grid.channels, channel, place.lanes);
      }
    }
    PublishSums(grid, place, item, sums.total_dy, sums.total_dyd, shared.sums,
                p.exchange.partials[0]);
    PublishSums(grid, place, item, sums.total_d, sums.total_square, shared.sums,
                p.exchange.partials[1]);
    if (threadIdx.x == 0) *shared.published = item + 1;
  }
  for (int chunk = place.kept; chunk < place.chunks; ++chunk) {
    SkipChunk(shared, cursor, grid.stages);
  }
}

/// The gathering warp: statistics and gradients of the channels that are this block's to finish.
template <typename X, bool kRecompute>
__device__ void GatherGradients(const RowsBackwardParams& p, const RowsShared<X, 2>& shared) {
  const double share = 1.0 / static_cast<double>(p.grid.rows);
  ForEachGathered(p.grid.channels, [&](int c) {
    const double reference = LoadReference<X>(p.x, c);
    AwaitPublished(shared, c / p.grid.slice_channels);
    float rstd = kRecompute ? 0.0F : p.given_rstd[c];
    double sum_dy;
    double sum_dyd;
    double sum;
    double square;
    SumSlots(p.exchange.partials[0], c, sum_dy, sum_dyd);
    SumSlots(p.exchange.partials[1], c, sum, square);
    if (threadIdx.x % kWarpThreads != 0) return;
    const double offset = sum * share;
    if (kRecompute) {
      double variance = fma(-sum, offset, square) * share;
      if (variance < 0.0) variance = 0.0;
      rstd = static_cast<float>(rsqrt(variance + p.eps));
    }
    const double dweight = static_cast<double>(rstd) * fma(-offset, sum_dy, sum_dyd);
    StoreSlot(&p.exchange.totals[0][c], reference + offset, rstd);
    StoreSlot(&p.exchange.totals[1][c], sum_dy * share, static_cast<float>(dweight * share));
    StoreWeight<X>(p.dweight, p.f32_weights, c, static_cast<float>(dweight));
    StoreWeight<X>(p.dbias, p.f32_weights, c, static_cast<float>(sum_dy));
  });
}

/// The spreading warp: coefficients of every item for the writing threads: mean, rstd, mean of
/// dy * h, mean of dy, what f32 leaves of the means in the sum, weight.
template <typename X>
__device__ void SpreadGradients(const RowsBackwardParams& p, const RowsShared<X, 2>& shared) {
  constexpr int kChannels = 2;
  const RowsGrid& grid = p.grid;
  for (int item = 0; item < grid.items; ++item) {
    const uint32_t use = static_cast<uint32_t>(item / kRowsCoefficientBuffers);
    Wait(&shared.free[item % kRowsCoefficientBuffers], (use & 1U) ^ 1U);
    AwaitPublished(shared, item);
    float* table = shared.Coefficients(item, grid.slice_channels);
    const int slice_channels = grid.slice_channels;
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    for (int begin = lane; begin < slice_channels; begin += kChannels * kWarpThreads) {
      const RowsSlot* from[2 * kChannels];
      RowsSlot slots[2 * kChannels];
      float scale[kChannels];
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        const int own = begin + k * kWarpThreads;
        const int channel = item * slice_channels + own;
        const bool there = own < slice_channels && channel < grid.channels;
        from[2 * k] = there ? &p.exchange.totals[0][channel] : nullptr;
        from[2 * k + 1] = there ? &p.exchange.totals[1][channel] : nullptr;
        scale[k] = there ? LoadWeight<X>(p.weight, p.f32_weights, channel, 1.0F) : 1.0F;
      }
      AwaitSlots(from, slots);
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        const int own = begin + k * kWarpThreads;
        if (from[2 * k] == nullptr) continue;
        const double mean = FirstOf(slots[2 * k]);
        const double mean_dy = FirstOf(slots[2 * k + 1]);
        const float mean_high = static_cast<float>(mean);
        const float mean_dy_high = static_cast<float>(mean_dy);
        const float rstd = SecondFloatOf(slots[2 * k]);
        const float mean_dyh = SecondFloatOf(slots[2 * k + 1]);
        const double rest = isfinite(mean) ? mean - static_cast<double>(mean_high) : 0.0;
        const double rest_dy =
            isfinite(mean_dy) ? mean_dy - static_cast<double>(mean_dy_high) : 0.0;
        table[own] = mean_high;
        table[slice_channels + own] = rstd;
        table[2 * slice_channels + own] = mean_dyh;
        table[3 * slice_channels + own] = mean_dy_high;
        table[4 * slice_channels + own] = static_cast<float>(
            rest * static_cast<double>(rstd) * static_cast<double>(mean_dyh) - rest_dy);
        table[5 * slice_channels + own] = scale[k];
      }
    }
    ArriveWarp(&shared.ready[item % kRowsCoefficientBuffers]);
  }
}

/// A writing thread's chunks of all items.
template <typename X, bool kBulk>
__device__ void WriteItems(const RowsBackwardParams& p, const RowsPlace& place,
                           const RowsShared<X, 2>& shared) {
  constexpr int kUnroll = RowsShared<X, 2>::kUnroll;
  const RowsGrid& grid = p.grid;
  const bool wide = kBulk || p.wide;
  const int64_t part_row = static_cast<int64_t>(place.first_chunk) * grid.chunk_rows + place.lane;
  float mean[4];
  float rstd[4];
  float mean_dyh[4];
  float mean_dy[4];
  float rest[4];
  float scale[4];
  RingCursor cursor;
  int current = -1;
  const auto write = [&](int item, int chunk) {
    if (item != current) {
      current = item;
      const int buffer = item % kRowsCoefficientBuffers;
      Wait(&shared.ready[buffer], static_cast<uint32_t>(item / kRowsCoefficientBuffers) & 1U);
      const float* table =
          shared.Coefficients(item, grid.slice_channels) + place.column * kRowsGranule;
      LoadFour(table, mean);
      LoadFour(table + grid.slice_channels, rstd);
      LoadFour(table + 2 * grid.slice_channels, mean_dyh);
      LoadFour(table + 3 * grid.slice_channels, mean_dy);
      LoadFour(table + 4 * grid.slice_channels, rest);
      LoadFour(table + 5 * grid.slice_channels, scale);
      ArriveWarp(&shared.free[buffer]);
    }
    const int channel = item * grid.slice_channels + place.column * kRowsGranule;
    const int64_t row = part_row + static_cast<int64_t>(chunk) * grid.chunk_rows;
    const int rows_left =
        channel < grid.channels ? static_cast<int>(min(grid.rows - row, int64_t{1} << 30)) : 0;
    const int64_t offset = row * grid.channels + channel;
    const int64_t step = static_cast<int64_t>(place.lanes) * grid.channels;
    Wait(&shared.full[cursor.stage], cursor.parity);
    QuadOf<X> dy[kUnroll];
    QuadOf<X> x[kUnroll];
    if (kBulk) {
      const QuadOf<X>* from_dy = shared.Chunk(cursor.stage, 0) + threadIdx.x % kRowsThreads;
      const QuadOf<X>* from_x = shared.Chunk(cursor.stage, 1) + threadIdx.x % kRowsThreads;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        dy[u] = from_dy[u * kRowsThreads];
        x[u] = from_x[u * kRowsThreads];
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (rows_left > u * place.lanes) {
          dy[u] = LoadQuad<X>(static_cast<const StorageOf<X>*>(p.dy) + offset + u * step, wide);
          x[u] = LoadQuad<X>(static_cast<const StorageOf<X>*>(p.x) + offset + u * step, wide);
        }
      }
    }
    ArriveWarp(&shared.empty[cursor.stage]);
    cursor.Next(grid.stages);
    StorageOf<X>* to = static_cast<StorageOf<X>*>(p.dx) + offset;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float gradients[4];
      float values[4];
      Quad<X>::Widen(dy[u], gradients);
      Quad<X>::Widen(x[u], values);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float h = (values[c] - mean[c]) * rstd[c];
        const float centred = (gradients[c] - mean_dy[c]) + rest[c];
        values[c] = fmaf(-h, mean_dyh[c], centred) * rstd[c] * scale[c];
      }
      if (rows_left > u * place.lanes) {
        StoreQuad<X>(to + u * step, Quad<X>::Narrow(values), wide);
      }
    }
  };
  ForEachChunk(
      grid.items, place.chunks, place.kept,
      [&](int item, int chunk) {
        if (chunk >= place.chunks - place.kept) {
          write(item, chunk);
        } else {
          SkipChunk(shared, cursor, grid.stages);
        }
      },
      write);
}

template <typename X, bool kBulk, bool kRecompute>
__global__ void __launch_bounds__(kRowsBlockThreads, 1)
    BackwardKernel(const __grid_constant__ RowsBackwardParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const RowsShared<X, 2> shared(memory, p.grid);
  const RowsPlace place(p.grid);
  if (threadIdx.x == 0) shared.Init(p.grid.stages);
  __syncthreads();
  ClearSlots<2>(p.grid, p.exchange);
  const RowsRole role = RoleOfWarp();
  if (role == RowsRole::kFill) {
    const RowsTensorMap* const maps[2] = {&p.dy_map, &p.x_map};
    FillRing<X, 2, kBulk>(p.grid, place, shared, maps,
                          [] { cooperative_groups::this_grid().sync(); });
    return;
  }
  cooperative_groups::this_grid().sync();
  switch (role) {
    case RowsRole::kSum:
      SumItems<X, kBulk, kRecompute>(p, place, shared);
      break;
    case RowsRole::kWrite:
      WriteItems<X, kBulk>(p, place, shared);
      break;
    case RowsRole::kGather:
      GatherGradients<X, kRecompute>(p, shared);
      break;
    default:
      SpreadGradients<X>(p, shared);
      break;
  }
#endif
}

}  // namespace rows
}  // namespace norm_device
