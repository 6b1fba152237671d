// Channel-last BatchNorm: the sums of a set's blocks become the totals of its channels, known to all
// of them.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_ring.cuh"
#include "batch_norm/batch_norm_rows_slots.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

/// The block's shared memory behind the barriers of the rings, RowsAreaBytes: sums of groups, then
/// gathered sums and totals.
__device__ inline double2* RowsArea(unsigned char* shared) {
  return reinterpret_cast<double2*>(shared + kRowsBarrierBytes);
}

/// Publishes the block's sums, two of a slot: lanes of a warp that share a column are added up, then
/// groups, in a fixed order. All threads of the block call.
template <int kArrays>
__device__ void PublishSums(const RowsGrid& grid, const RowsPlace& place, double2* area,
                            double (*const (&sums)[2 * kArrays])[4], const RowsExchange& exchange) {
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    if (offset < place.columns) break;
#pragma unroll
    for (int i = 0; i < 8 * kArrays; ++i) {
      double& value = (*sums[i / 4])[i % 4];
      value += __shfl_xor_sync(0xffffffffU, value, offset);
    }
  }
  const int64_t block_offset = static_cast<int64_t>(place.block) * grid.channels;
  const int channel = place.Channel(grid);
  if (grid.groups == 1) {
    if (place.group == 0 && place.lane < place.columns && channel < grid.channels) {
#pragma unroll
      for (int i = 0; i < 4 * kArrays; ++i) {
        StoreSlot(&exchange.partials[i / 4][block_offset + channel + i % 4],
                  (*sums[i / 4 * 2])[i % 4], (*sums[i / 4 * 2 + 1])[i % 4]);
      }
    }
    __syncthreads();
    return;
  }
  const bool has_column = place.lane < place.columns;
  const auto entry = [&](int row, int i) -> double2& {
    return area[i / 4 * kRowsSumEntries + (row * grid.strips + place.strip) * grid.strip_channels +
                place.lane + i % 4 * place.columns];
  };
  const auto put = [&](int row) {
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) {
      entry(row, i) = make_double2((*sums[i / 4 * 2])[i % 4], (*sums[i / 4 * 2 + 1])[i % 4]);
    }
  };
  int count = grid.groups;
  while (count * grid.slice_channels > kRowsSumEntries) {
    const int half = (count + 1) / 2;
    if (has_column && place.group >= half && place.group < count) put(place.group - half);
    __syncthreads();
    if (has_column && place.group < count - half) {
#pragma unroll
      for (int i = 0; i < 4 * kArrays; ++i) {
        const double2 other = entry(place.group, i);
        (*sums[i / 4 * 2])[i % 4] += other.x;
        (*sums[i / 4 * 2 + 1])[i % 4] += other.y;
      }
    }
    __syncthreads();
    count = half;
  }
  if (has_column && place.group < count) put(place.group);
  __syncthreads();
  for (int own = static_cast<int>(threadIdx.x); own < kArrays * grid.slice_channels;
       own += kRowsWarps * kWarpThreads) {
    const int k = own / grid.slice_channels;
    const int in_slice = own - k * grid.slice_channels;
    const int in_strip = in_slice % grid.strip_channels;
    const double2* from = area + k * kRowsSumEntries + in_slice - in_strip +
                          in_strip % kRowsGranule * place.columns + in_strip / kRowsGranule;
    double first = 0.0;
    double second = 0.0;
#pragma unroll 4
    for (int row = 0; row < count; ++row) {
      const double2 value = from[row * grid.slice_channels];
      first += value.x;
      second += value.y;
    }
    const int own_channel = place.set * grid.slice_channels + in_slice;
    if (own_channel < grid.channels) {
      StoreSlot(&exchange.partials[k][block_offset + own_channel], first, second);
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
/// block call.
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

/// Where the totals of a block's own lie in its area: behind gathered sums.
template <int kArrays>
__device__ RowsSlot* OwnTotals(double2* area) {
  return reinterpret_cast<RowsSlot*>(area + kArrays * kRowsMaxGather);
}

/// Passes on a channel's totals, array `k`, from the thread that has finished it: to all blocks, or
/// to its own where every block finishes all channels.
template <int kArrays>
__device__ void StoreTotals(const RowsGrid& grid, const RowsExchange& exchange, double2* area,
                            int k, int channel, double first, float second) {
  if (grid.shared_totals) {
    StoreSlot(&exchange.totals[k][channel], first, second);
  } else {
    OwnTotals<kArrays>(area)[k * grid.gather + threadIdx.x] = PackSlot(first, second);
  }
}

/// Totals of a lane's four channels, from its first on. Where they come from other blocks the first
/// group asks for them and passes them on. All threads of the block call; `active`: the lane has
/// channels.
template <int kArrays>
__device__ void AwaitTotals(const RowsGrid& grid, const RowsPlace& place,
                            const RowsExchange& exchange, int channel, bool active, double2* area,
                            RowsSlot (&totals)[kArrays][4]) {
  __syncthreads();
  if (!grid.shared_totals) {
    const RowsSlot* const own = OwnTotals<kArrays>(area) + place.column * kRowsGranule;
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) totals[i / 4][i % 4] = own[i / 4 * grid.gather + i % 4];
    return;
  }
#pragma unroll
  for (int i = 0; i < 4 * kArrays; ++i) totals[i / 4][i % 4] = {0, 0};
  const bool asks = active && place.group == 0 && (grid.groups == 1 || place.lane < place.columns);
  if (asks) {
    const RowsSlot* from[4 * kArrays];
    RowsSlot slots[4 * kArrays];
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) from[i] = &exchange.totals[i / 4][channel + i % 4];
    AwaitSlots(from, slots);
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) totals[i / 4][i % 4] = slots[i];
  }
  if (grid.groups == 1) return;
  RowsSlot* const entry =
      reinterpret_cast<RowsSlot*>(area) + place.strip * grid.strip_channels + place.column;
  if (asks) {
#pragma unroll
    for (int i = 0; i < 4 * kArrays; ++i) {
      entry[i / 4 * kRowsSumEntries + i % 4 * place.columns] = totals[i / 4][i % 4];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4 * kArrays; ++i) {
    totals[i / 4][i % 4] = entry[i / 4 * kRowsSumEntries + i % 4 * place.columns];
  }
}

}  // namespace norm_device
