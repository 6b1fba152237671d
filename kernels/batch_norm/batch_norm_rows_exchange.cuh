// How resident blocks tell each other sums of channels: slots in global memory that one access
// writes and reads whole, data and flag together, so that neither fences nor counters are needed.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_ring.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

__device__ inline void StoreSlot(RowsSlot* slot, uint64_t first, uint64_t second) {
  asm volatile(
      "{\n"
      ".reg .b128 both;\n"
      "mov.b128 both, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], both;\n"
      "}" ::"l"(slot),
      "l"(first), "l"(second | 1)
      : "memory");
}

__device__ inline RowsSlot LoadSlot(const RowsSlot* slot) {
  RowsSlot value;
  asm volatile(
      "{\n"
      ".reg .b128 both;\n"
      "ld.relaxed.gpu.global.b128 both, [%2];\n"
      "mov.b128 {%0, %1}, both;\n"
      "}"
      : "=l"(value.first), "=l"(value.second)
      : "l"(slot)
      : "memory");
  return value;
}

/// Waits until the slot is written.
__device__ inline RowsSlot AwaitSlot(const RowsSlot* slot) {
  RowsSlot value = LoadSlot(slot);
  while ((value.second & 1) == 0) value = LoadSlot(slot);
  return value;
}

__device__ inline void StoreSlot(RowsSlot* slot, double first, double second) {
  StoreSlot(slot, static_cast<uint64_t>(__double_as_longlong(first)),
            static_cast<uint64_t>(__double_as_longlong(second)));
}

/// A double and a float: the flag has its own word.
__device__ inline void StoreSlot(RowsSlot* slot, double first, float second) {
  StoreSlot(slot, static_cast<uint64_t>(__double_as_longlong(first)),
            static_cast<uint64_t>(__float_as_uint(second)) << 32);
}

__device__ inline double FirstOf(const RowsSlot& slot) {
  return __longlong_as_double(static_cast<long long>(slot.first));
}
__device__ inline double SecondOf(const RowsSlot& slot) {
  return __longlong_as_double(static_cast<long long>(slot.second));
}
__device__ inline float SecondFloatOf(const RowsSlot& slot) {
  return __uint_as_float(static_cast<uint32_t>(slot.second >> 32));
}

/// The summing threads publish the block's sums of an item: lanes of a warp that share a column are
/// added up, then the warps or lanes of the block, in a fixed order.
__device__ inline void PublishSums(const RowsGrid& grid, const RowsPlace& place, int item,
                                   double (&a)[4], double (&b)[4], double2* sums,
                                   RowsSlot* partials) {
  const int columns = grid.slice_channels / kRowsGranule;
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    if (offset < columns) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      a[c] += __shfl_xor_sync(0xffffffffU, a[c], offset);
      b[c] += __shfl_xor_sync(0xffffffffU, b[c], offset);
    }
  }
  const bool shared_columns = columns < kWarpThreads;
  const int row = shared_columns ? static_cast<int>(threadIdx.x) / kWarpThreads : place.lane;
  if (!shared_columns || static_cast<int>(threadIdx.x) % kWarpThreads < columns) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sums[row * grid.slice_channels + c * columns + place.column] = make_double2(a[c], b[c]);
    }
  }
  SyncSumming();
  const int own = static_cast<int>(threadIdx.x);
  const int channel = item * grid.slice_channels + own;
  if (own < grid.slice_channels && channel < grid.channels) {
    const double2* entry = sums + own % kRowsGranule * columns + own / kRowsGranule;
    double first = 0.0;
    double second = 0.0;
#pragma unroll 8
    for (int i = 0; i < grid.sum_rows; ++i) {
      const double2 value = entry[i * grid.slice_channels];
      first += value.x;
      second += value.y;
    }
    StoreSlot(&partials[static_cast<int64_t>(channel) * gridDim.x + blockIdx.x], first, second);
  }
  SyncSumming();
}

/// Clears this block's share of all slots. A grid-wide barrier must follow.
template <int kArrays>
__device__ void ClearSlots(const RowsGrid& grid, const RowsExchange& exchange) {
  const RowsSlot empty = {0, 0};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
    const int64_t partials = static_cast<int64_t>(grid.channels) * gridDim.x;
    for (int64_t i = thread; i < partials; i += threads) exchange.partials[k][i] = empty;
    for (int64_t i = thread; i < grid.channels; i += threads) exchange.totals[k][i] = empty;
  }
}

/// Waits until all of a thread's slots are written; those that are not are asked for at once.
template <int kSlots>
__device__ void AwaitSlots(const RowsSlot* const (&from)[kSlots], RowsSlot (&slots)[kSlots]) {
#pragma unroll
  for (int k = 0; k < kSlots; ++k) slots[k].second = from[k] == nullptr ? 1 : 0;
  bool waiting = true;
  while (waiting) {
    waiting = false;
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if ((slots[k].second & 1) == 0) slots[k] = LoadSlot(from[k]);
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) waiting = waiting || (slots[k].second & 1) == 0;
  }
}

/// The sums of one channel's slots over the blocks, by one warp, in fixed order.
__device__ inline void SumSlots(const RowsSlot* partials, int channel, double& first,
                                double& second) {
  constexpr int kSlots = 5;
  const int blocks = static_cast<int>(gridDim.x);
  const RowsSlot* slots = partials + static_cast<int64_t>(channel) * blocks;
  double sums[2] = {};
  for (int begin = static_cast<int>(threadIdx.x) % kWarpThreads; begin < blocks;
       begin += kSlots * kWarpThreads) {
    const RowsSlot* from[kSlots];
    RowsSlot slot[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int i = begin + k * kWarpThreads;
      from[k] = i < blocks ? &slots[i] : nullptr;
    }
    AwaitSlots(from, slot);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if (from[k] != nullptr) {
        sums[0] += FirstOf(slot[k]);
        sums[1] += SecondOf(slot[k]);
      }
    }
  }
  LaneSum<kWarpThreads>(sums);
  first = sums[0];
  second = sums[1];
}

/// Calls visit(channel) for the channels that this block finishes, each by one of its gathering
/// warps.
template <typename Visit>
__device__ void ForEachGathered(int channels, Visit&& visit) {
  const int warp = static_cast<int>(blockDim.x - 1 - threadIdx.x) / kWarpThreads;
  for (int64_t c = blockIdx.x + static_cast<int64_t>(warp) * gridDim.x; c < channels;
       c += static_cast<int64_t>(kRowsGatherWarps) * gridDim.x) {
    visit(static_cast<int>(c));
  }
}

}  // namespace norm_device
