// Channel-last BatchNorm: the sums of a set's blocks become the totals of its channels, known to all
// of them.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_ring.cuh"
#include "batch_norm/batch_norm_rows_slots.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

/// Publishes the block's sums: lanes of a warp that share a column are added up, then
/// groups, in a fixed order. `area` holds kRowsSumBytes. All threads of the block call.
__device__ inline void PublishSums(const RowsGrid& grid, const RowsPlace& place, double2* area,
                                   double (&a)[4], double (&b)[4], RowsSlot* partials) {
  constexpr int kAreaEntries = kRowsSumBytes / 16;
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    if (offset < place.columns) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      a[c] += __shfl_xor_sync(0xffffffffU, a[c], offset);
      b[c] += __shfl_xor_sync(0xffffffffU, b[c], offset);
    }
  }
  RowsSlot* const to = partials + static_cast<int64_t>(place.block) * grid.channels;
  const int channel = place.Channel(grid);
  if (grid.groups == 1) {
    if (place.group == 0 && place.lane < place.columns && channel < grid.channels) {
#pragma unroll
      for (int c = 0; c < 4; ++c) StoreSlot(&to[channel + c], a[c], b[c]);
    }
    return;
  }
  const bool has_column = place.lane < place.columns;
  const auto entry = [&](int row) {
    return area + (row * grid.strips + place.strip) * grid.strip_channels + place.lane;
  };
  int count = grid.groups;
  while (count * grid.strips * grid.strip_channels > kAreaEntries) {
    const int half = (count + 1) / 2;
    if (has_column && place.group >= half && place.group < count) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        entry(place.group - half)[c * place.columns] = make_double2(a[c], b[c]);
      }
    }
    __syncthreads();
    if (has_column && place.group < count - half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const double2 other = entry(place.group)[c * place.columns];
        a[c] += other.x;
        b[c] += other.y;
      }
    }
    __syncthreads();
    count = half;
  }
  if (has_column && place.group < count) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      entry(place.group)[c * place.columns] = make_double2(a[c], b[c]);
    }
  }
  __syncthreads();
  for (int own = static_cast<int>(threadIdx.x); own < grid.slice_channels;
       own += static_cast<int>(blockDim.x)) {
    const int in_strip = own % grid.strip_channels;
    const double2* from =
        area + own - in_strip + in_strip % kRowsGranule * place.columns + in_strip / kRowsGranule;
    double first = 0.0;
    double second = 0.0;
#pragma unroll 4
    for (int row = 0; row < count; ++row) {
      const double2 value = from[row * grid.strips * grid.strip_channels];
      first += value.x;
      second += value.y;
    }
    if (place.set * grid.slice_channels + own < grid.channels) {
      StoreSlot(&to[place.set * grid.slice_channels + own], first, second);
    }
  }
  __syncthreads();
}

/// The channel that this thread finishes; -1 without.
__device__ inline int OwnChannel(const RowsGrid& grid, const RowsPlace& place) {
  const int thread = static_cast<int>(threadIdx.x);
  const int own = (grid.shared_totals ? place.block * grid.gather : 0) + thread;
  const int channel = place.set * grid.slice_channels + own;
  const bool there = thread < grid.gather && own < grid.slice_channels && channel < grid.channels;
  return there ? channel : -1;
}

/// The sums over all blocks of the set, in the threads that have an OwnChannel. All threads of the
/// block call; `area` holds RowsGatherBytes.
template <int kArrays>
__device__ void GatherSums(const RowsGrid& grid, const RowsPlace& place,
                           const RowsExchange& exchange, double2* area, double2 (&sums)[kArrays]) {
  constexpr int kBlocks = 6 / kArrays;  // asked for at once
  constexpr int kThreads = kRowsWarps * kWarpThreads;
  const int first = grid.shared_totals ? place.block * grid.gather : 0;
  const int thread = static_cast<int>(threadIdx.x);
  const int own = first + thread % grid.gather;
  const int channel = place.set * grid.slice_channels + own;
  const bool there = own < grid.slice_channels && channel < grid.channels;
  const int blocks = grid.set_blocks;
  if (first < grid.slice_channels) {
    double values[2 * kArrays] = {};
    if (there) {
      const int stride = kThreads / grid.gather;
      for (int begin = thread / grid.gather; begin < blocks; begin += kBlocks * stride) {
        const RowsSlot* from[kBlocks * kArrays];
        RowsSlot slots[kBlocks * kArrays];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
          const int64_t block = begin + i * stride;
#pragma unroll
          for (int k = 0; k < kArrays; ++k) {
            from[i * kArrays + k] =
                block < blocks ? &exchange.partials[k][block * grid.channels + channel] : nullptr;
          }
        }
        AwaitSlots(from, slots);
#pragma unroll
        for (int i = 0; i < kBlocks * kArrays; ++i) {
          if (from[i] == nullptr) continue;
          values[i % kArrays * 2] += FirstOf(slots[i]);
          values[i % kArrays * 2 + 1] += SecondOf(slots[i]);
        }
      }
    }
#pragma unroll
    for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
      if (offset < grid.gather) break;
#pragma unroll
      for (double& value : values) value += __shfl_xor_sync(0xffffffffU, value, offset);
    }
    // Rows of `gather` entries, of a warp or of several side by side.
    const int wide = max(1, grid.gather / kWarpThreads);
    if (thread % kWarpThreads < grid.gather) {
      const int row = thread / kWarpThreads / wide;
#pragma unroll
      for (int k = 0; k < kArrays; ++k) {
        area[(k * kRowsWarps / wide + row) * grid.gather + thread % grid.gather] =
            make_double2(values[2 * k], values[2 * k + 1]);
      }
    }
  }
  __syncthreads();
  if (!there || thread >= grid.gather) return;
  const int rows = kRowsWarps / max(1, grid.gather / kWarpThreads);
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
    sums[k] = make_double2(0.0, 0.0);
#pragma unroll 4
    for (int row = 0; row < rows; ++row) {
      const double2 value = area[(k * rows + row) * grid.gather + thread];
      sums[k].x += value.x;
      sums[k].y += value.y;
    }
  }
}

/// Passes on a channel's totals, array `k`, from the thread that has finished it: to all blocks, or
/// through `area` (kRowsSumBytes) to its own where every block finishes all channels.
__device__ inline void StoreTotals(const RowsGrid& grid, const RowsExchange& exchange,
                                   double2* area, int k, int channel, double first, float second) {
  if (grid.shared_totals) {
    StoreSlot(&exchange.totals[k][channel], first, second);
  } else {
    reinterpret_cast<RowsSlot*>(area)[k * grid.gather + threadIdx.x] = PackSlot(first, second);
  }
}

/// Totals of a lane's four channels, from its first on. Where they come from other blocks the first
/// group asks for them and passes them on through `area` (kRowsSumBytes). All threads of the block
/// call; `active`: the lane has channels.
template <int kArrays>
__device__ void AwaitTotals(const RowsGrid& grid, const RowsPlace& place,
                            const RowsExchange& exchange, int channel, bool active, double2* area,
                            RowsSlot (&totals)[kArrays][4]) {
  const RowsSlot* const entries = reinterpret_cast<const RowsSlot*>(area);
  if (!grid.shared_totals) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) {
      totals[i / 4][i % 4] = entries[i / 4 * grid.gather + place.strip * grid.strip_channels +
                                     place.column * kRowsGranule + i % 4];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
#pragma unroll
    for (int c = 0; c < 4; ++c) totals[k][c] = {0, 0};
  }
  const bool asks = active && place.group == 0;
  if (asks && (grid.groups == 1 || place.lane < place.columns)) {
    const RowsSlot* from[4 * kArrays];
    RowsSlot slots[4 * kArrays];
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) from[i] = &exchange.totals[i / 4][channel + i % 4];
    AwaitSlots(from, slots);
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) totals[i / 4][i % 4] = slots[i];
  }
  if (grid.groups == 1) return;
  RowsSlot* entry =
      reinterpret_cast<RowsSlot*>(area) + place.strip * grid.strip_channels + place.column;
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
    if (k > 0) __syncthreads();
    if (asks && place.lane < place.columns) {
#pragma unroll
      for (int c = 0; c < 4; ++c) entry[c * place.columns] = totals[k][c];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 4; ++c) totals[k][c] = entry[c * place.columns];
  }
}

}  // namespace norm_device
