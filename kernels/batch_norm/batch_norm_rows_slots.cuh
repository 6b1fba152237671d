// How resident blocks tell each other sums of channels: slots in global memory that one access
// writes and reads whole, data and flag together, so that neither fences nor counters are needed.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_device.h"

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

__device__ inline void StoreSlot(RowsSlot* slot, double first, double second) {
  StoreSlot(slot, static_cast<uint64_t>(__double_as_longlong(first)),
            static_cast<uint64_t>(__double_as_longlong(second)));
}

/// A double and a float: the flag has its own word.
__device__ inline RowsSlot PackSlot(double first, float second) {
  return {static_cast<uint64_t>(__double_as_longlong(first)),
          static_cast<uint64_t>(__float_as_uint(second)) << 32};
}
__device__ inline void StoreSlot(RowsSlot* slot, double first, float second) {
  const RowsSlot packed = PackSlot(first, second);
  StoreSlot(slot, packed.first, packed.second);
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

/// Clears this block's share of all slots. A grid-wide barrier must follow.
template <int kArrays>
__device__ void ClearSlots(const RowsGrid& grid, const RowsExchange& exchange) {
  const RowsSlot empty = {0, 0};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
    const int64_t partials = static_cast<int64_t>(grid.channels) * grid.set_blocks;
    for (int64_t i = thread; i < partials; i += threads) exchange.partials[k][i] = empty;
    for (int64_t i = thread; i < grid.channels; i += threads) exchange.totals[k][i] = empty;
  }
}

/// Waits until all of a thread's slots are written; those that are not are asked for at once, with
/// pauses: requests of all blocks meet in the few slices of L2 that hold the slots.
template <int kSlots>
__device__ void AwaitSlots(const RowsSlot* const (&from)[kSlots], RowsSlot (&slots)[kSlots]) {
  constexpr unsigned kPause = 64;  // nanoseconds
#pragma unroll
  for (int k = 0; k < kSlots; ++k) slots[k].second = from[k] == nullptr ? 1 : 0;
  while (true) {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if ((slots[k].second & 1) == 0) slots[k] = LoadSlot(from[k]);
    }
    bool waiting = false;
#pragma unroll
    for (int k = 0; k < kSlots; ++k) waiting = waiting || (slots[k].second & 1) == 0;
    if (!waiting) break;
    __nanosleep(kPause);
  }
}

}  // namespace norm_device
