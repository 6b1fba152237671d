// BatchNorm training forward of channel-last tensors on sm_90, in one launch.
// Items are slices of channels of all rows; every block, all resident at once, takes a run of rows.
// Bulk copies bring chunks of its part into a ring in shared memory, where (1) the summing warps
// read them, as far ahead as the ring allows. (2) The block's sums of an item go to all blocks
// through slots in global memory. (3) The writing warps normalize the same chunks once the item's
// statistics are there; chunks that did not stay in the ring until then come again, from L2 if the
// item is short.
#pragma once

#include "batch_norm/batch_norm_rows_exchange.cuh"
#include "batch_norm/batch_norm_rows_ring.cuh"
#include "primitives/moments.cuh"

namespace norm_device {
namespace rows {

/// Sums of x - reference and of its squares over a thread's rows, per channel of its granule.
/// Groups of rows are summed in f32 relative to their first row, groups in f64.
template <typename X>
struct ChannelSums {
  static constexpr int kGroupRows = 32;
  float reference[4];
  float centre[4];
  float sum[4];
  float square[4];
  double total[4] = {};
  double total_square[4] = {};
  int count = 0;  // rows of the group
  int64_t first_row = 0;

  __device__ void Begin(const QuadOf<X>& raw, int64_t row) {
    Quad<X>::Widen(raw, centre);
    first_row = row;
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = square[c] = 0.0F;
  }
  __device__ void Add(const QuadOf<X>& raw) {
    float values[4];
    Quad<X>::Widen(raw, values);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float d = values[c] - centre[c];
      sum[c] += d;
      square[c] = fmaf(d, d, square[c]);
    }
  }
  /// Moves the group into the totals. Where f32 did not hold its squares the group is read again.
  __device__ void Flush(const void* x, int channels, int channel, int lanes) {
    const double n = count;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (isfinite(square[c])) {
        const double offset = static_cast<double>(centre[c]) - static_cast<double>(reference[c]);
        const double s = sum[c];
        total[c] += fma(n, offset, s);
        total_square[c] += fma(offset, fma(n, offset, s + s), static_cast<double>(square[c]));
      } else {
        const double2 again =
            SumAgain(static_cast<const StorageOf<X>*>(x) + first_row * channels + channel + c,
                     static_cast<int64_t>(lanes) * channels, count, reference[c]);
        total[c] += again.x;
        total_square[c] += again.y;
      }
    }
    count = 0;
  }
  static __device__ double2 SumAgain(const StorageOf<X>* x, int64_t stride, int count,
                                     float reference) {
    double s = 0.0;
    double q = 0.0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const double d =
          static_cast<double>(Element<X>::Widen(x[i * stride])) - static_cast<double>(reference);
      s += d;
      q = fma(d, d, q);
    }
    return {s, q};
  }
};

/// A summing thread's chunks of all items.
template <typename X, bool kBulk>
__device__ void SumItems(const RowsForwardParams& p, const RowsPlace& place,
                         const RowsShared<X, 1>& shared) {
  constexpr int kUnroll = RowsShared<X, 1>::kUnroll;
  const RowsGrid& grid = p.grid;
  const bool wide = kBulk || p.wide;
  const StorageOf<X>* const x = static_cast<const StorageOf<X>*>(p.x);
  const int64_t part_row = static_cast<int64_t>(place.first_chunk) * grid.chunk_rows + place.lane;
  RingCursor cursor;
  for (int item = 0; item < grid.items; ++item) {
    const int channel = item * grid.slice_channels + place.column * kRowsGranule;
    const bool active = channel < grid.channels;
    ChannelSums<X> sums;
    if (active) LoadReference<X>(x, channel, wide, sums.reference);
    int64_t row = part_row;
    for (int chunk = 0; chunk < place.chunks; ++chunk, row += grid.chunk_rows) {
      Wait(&shared.full[cursor.stage], cursor.parity);
      const int rows_left = active ? static_cast<int>(min(grid.rows - row, int64_t{1} << 30)) : 0;
      QuadOf<X> raw[kUnroll];
      if (kBulk) {
        const QuadOf<X>* from = shared.Chunk(cursor.stage, 0) + threadIdx.x % kRowsThreads;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) raw[u] = from[u * kRowsThreads];
      } else {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (rows_left > u * place.lanes) {
            raw[u] = LoadQuad<X>(x + (row + u * place.lanes) * grid.channels + channel, wide);
          }
        }
      }
      ArriveWarp(&shared.empty[cursor.stage]);
      cursor.Next(grid.stages);
      if (item > 0 && chunk < place.chunks - place.kept) SkipChunk(shared, cursor, grid.stages);
      if (rows_left > 0) {
        if (sums.count == 0) sums.Begin(raw[0], row);
        if (rows_left > (kUnroll - 1) * place.lanes) {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) sums.Add(raw[u]);
          sums.count += kUnroll;
        } else {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if (rows_left > u * place.lanes) {
              sums.Add(raw[u]);
              ++sums.count;
            }
          }
        }
      }
      if (sums.count >= ChannelSums<X>::kGroupRows ||
          (sums.count > 0 && chunk == place.chunks - 1)) {
        sums.Flush(x, grid.channels, channel, place.lanes);
      }
    }
    PublishSums(grid, place, item, sums.total, sums.total_square, shared.sums,
                p.exchange.partials[0]);
    if (threadIdx.x == 0) *shared.published = item + 1;
  }
  for (int chunk = place.kept; chunk < place.chunks; ++chunk) {
    SkipChunk(shared, cursor, grid.stages);
  }
}

/// The gathering warp: statistics of the channels that are this block's to finish.
template <typename X>
__device__ void GatherStatistics(const RowsForwardParams& p, const RowsShared<X, 1>& shared) {
  const double n = static_cast<double>(p.grid.rows);
  const double share = 1.0 / n;
  ForEachGathered(p.grid.channels, [&](int c) {
    const double reference = LoadReference<X>(p.x, c);
    AwaitPublished(shared, c / p.grid.slice_channels);
    double sum;
    double square;
    SumSlots(p.exchange.partials[0], c, sum, square);
    if (threadIdx.x % kWarpThreads != 0) return;
    const double offset = sum * share;
    const double mean = reference + offset;
    double variance = fma(-sum, offset, square) * share;
    if (variance < 0.0) variance = 0.0;
    const float rstd = static_cast<float>(rsqrt(variance + p.eps));
    StoreSlot(&p.exchange.totals[0][c], mean, rstd);
    if (p.mean != nullptr) p.mean[c] = static_cast<float>(mean);
    if (p.rstd != nullptr) p.rstd[c] = rstd;
    if (p.new_running_mean != nullptr) {
      const double running_mean = p.running_mean[c];
      const double running_var = p.running_var[c];
      p.new_running_mean[c] =
          static_cast<float>((1.0 - p.momentum) * running_mean + p.momentum * mean);
      p.new_running_var[c] = static_cast<float>((1.0 - p.momentum) * running_var +
                                                p.momentum * (variance * (n / (n - 1.0))));
    }
  });
}

/// The spreading warp: coefficients of every item for the writing threads: mean, what f32 leaves of
/// it times -rstd, rstd, weight, bias.
template <typename X>
__device__ void SpreadStatistics(const RowsForwardParams& p, const RowsShared<X, 1>& shared) {
  constexpr int kSlots = 4;
  const RowsGrid& grid = p.grid;
  for (int item = 0; item < grid.items; ++item) {
    const uint32_t use = static_cast<uint32_t>(item / kRowsCoefficientBuffers);
    Wait(&shared.free[item % kRowsCoefficientBuffers], (use & 1U) ^ 1U);
    AwaitPublished(shared, item);
    float* table = shared.Coefficients(item, grid.slice_channels);
    const int slice_channels = grid.slice_channels;
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    for (int begin = lane; begin < slice_channels; begin += kSlots * kWarpThreads) {
      const RowsSlot* from[kSlots];
      RowsSlot slots[kSlots];
      float scale[kSlots];
      float shift[kSlots];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        const int own = begin + k * kWarpThreads;
        const int channel = item * slice_channels + own;
        const bool there = own < slice_channels && channel < grid.channels;
        from[k] = there ? &p.exchange.totals[0][channel] : nullptr;
        scale[k] = there ? LoadWeight<X>(p.weight, p.f32_weights, channel, 1.0F) : 1.0F;
        shift[k] = there ? LoadWeight<X>(p.bias, p.f32_weights, channel, 0.0F) : 0.0F;
      }
      AwaitSlots(from, slots);
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        const int own = begin + k * kWarpThreads;
        if (from[k] == nullptr) continue;
        const double mean = FirstOf(slots[k]);
        const float high = static_cast<float>(mean);
        const float rstd = SecondFloatOf(slots[k]);
        const double rest = isfinite(mean) ? mean - static_cast<double>(high) : 0.0;
        table[own] = high;
        table[slice_channels + own] = -static_cast<float>(rest) * rstd;
        table[2 * slice_channels + own] = rstd;
        table[3 * slice_channels + own] = scale[k];
        table[4 * slice_channels + own] = shift[k];
      }
    }
    ArriveWarp(&shared.ready[item % kRowsCoefficientBuffers]);
  }
}

/// A writing thread's chunks of all items.
template <typename X, bool kBulk>
__device__ void WriteItems(const RowsForwardParams& p, const RowsPlace& place,
                           const RowsShared<X, 1>& shared) {
  constexpr int kUnroll = RowsShared<X, 1>::kUnroll;
  const RowsGrid& grid = p.grid;
  const bool wide = kBulk || p.wide;
  const int64_t part_row = static_cast<int64_t>(place.first_chunk) * grid.chunk_rows + place.lane;
  float mean[4];
  float rest[4];
  float rstd[4];
  float scale[4];
  float shift[4];
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
      LoadFour(table + grid.slice_channels, rest);
      LoadFour(table + 2 * grid.slice_channels, rstd);
      LoadFour(table + 3 * grid.slice_channels, scale);
      LoadFour(table + 4 * grid.slice_channels, shift);
      ArriveWarp(&shared.free[buffer]);
    }
    const int channel = item * grid.slice_channels + place.column * kRowsGranule;
    const int64_t row = part_row + static_cast<int64_t>(chunk) * grid.chunk_rows;
    const int rows_left =
        channel < grid.channels ? static_cast<int>(min(grid.rows - row, int64_t{1} << 30)) : 0;
    const int64_t offset = row * grid.channels + channel;
    const int64_t step = static_cast<int64_t>(place.lanes) * grid.channels;
    Wait(&shared.full[cursor.stage], cursor.parity);
    QuadOf<X> raw[kUnroll];
    if (kBulk) {
      const QuadOf<X>* from = shared.Chunk(cursor.stage, 0) + threadIdx.x % kRowsThreads;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) raw[u] = from[u * kRowsThreads];
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (rows_left > u * place.lanes) {
          raw[u] = LoadQuad<X>(static_cast<const StorageOf<X>*>(p.x) + offset + u * step, wide);
        }
      }
    }
    ArriveWarp(&shared.empty[cursor.stage]);
    cursor.Next(grid.stages);
    StorageOf<X>* to = static_cast<StorageOf<X>*>(p.y) + offset;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float values[4];
      Quad<X>::Widen(raw[u], values);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        values[c] = fmaf(fmaf(values[c] - mean[c], rstd[c], rest[c]), scale[c], shift[c]);
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

template <typename X, bool kBulk>
__global__ void __launch_bounds__(kRowsBlockThreads, 1)
    ForwardKernel(const __grid_constant__ RowsForwardParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const RowsShared<X, 1> shared(memory, p.grid);
  const RowsPlace place(p.grid);
  if (threadIdx.x == 0) shared.Init(p.grid.stages);
  __syncthreads();
  ClearSlots<1>(p.grid, p.exchange);
  const RowsRole role = RoleOfWarp();
  if (role == RowsRole::kFill) {
    const RowsTensorMap* const maps[1] = {&p.x_map};
    FillRing<X, 1, kBulk>(p.grid, place, shared, maps,
                          [] { cooperative_groups::this_grid().sync(); });
    return;
  }
  cooperative_groups::this_grid().sync();
  switch (role) {
    case RowsRole::kSum:
      SumItems<X, kBulk>(p, place, shared);
      break;
    case RowsRole::kWrite:
      WriteItems<X, kBulk>(p, place, shared);
      break;
    case RowsRole::kGather:
      GatherStatistics<X>(p, shared);
      break;
    default:
      SpreadStatistics<X>(p, shared);
      break;
  }
#endif
}

}  // namespace rows
}  // namespace norm_device
