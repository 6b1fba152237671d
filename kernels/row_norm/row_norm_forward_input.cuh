// What row forward reads: x, and x + residual, into the registers of the row's owner.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_held_row.cuh"

namespace norm_device {

/// Whether granules of V elements that start at `row` can be accessed at once: pairs, if the row
/// starts at a multiple of theirs; wider ones, if all tensors and rows do.
template <typename X, int V>
__device__ bool CanAccessAtOnce(const RowForwardParams& p, const StorageOf<X>* row) {
  if constexpr (V == 1) return true;
  if constexpr (V * sizeof(StorageOf<X>) < 16) {
    return reinterpret_cast<uintptr_t>(row) % (V * sizeof(StorageOf<X>)) == 0;
  }
  return p.aligned;
}

template <typename X, int V>
__device__ PackedGranule<X, V> Sum(const PackedGranule<X, V>& a, const PackedGranule<X, V>& b) {
  ComputeOf<X> sums[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = a.Wide(i) + b.Wide(i);
  return PackedGranule<X, V>::Rounded(sums);
}

/// A thread's granules of a row of `source`; zero past the row's end.
template <typename X, int V, int kGranules, typename Owner>
__device__ void LoadGranules(const StorageOf<X>* source, const HeldRow<X, V, kGranules, Owner>& row,
                             PackedGranule<X, V> (&granules)[kGranules]) {
  using Row = HeldRow<X, V, kGranules, Owner>;
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    granules[g] = PackedGranule<X, V>::Zero();
    if (row.Holds(g)) {
      granules[g] = PackedGranule<X, V>::Load(source + row.first + g * Row::kStep, true);
    }
  }
}

/// Adds granules of memory to those in registers, rounded to their type, a few at a time.
template <typename X, int V, int kGranules, typename Owner>
__device__ void AddGranules(const StorageOf<X>* source, const HeldRow<X, V, kGranules, Owner>& row,
                            PackedGranule<X, V> (&granules)[kGranules]) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  using Granule = PackedGranule<X, V>;
  constexpr int kMost = (kGranules * Granule::kWords > 16 ? 8 : 16) / Granule::kWords;
  constexpr int kTogether = kGranules < kMost ? kGranules : kMost;
#pragma unroll
  for (int first = 0; first < kGranules; first += kTogether) {
    Granule added[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      added[i] = Granule::Zero();
      if (g < kGranules && row.Holds(g)) {
        added[i] = Granule::Load(source + row.first + g * Row::kStep, true);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      if (g < kGranules && row.Holds(g)) granules[g] = Sum(granules[g], added[i]);
    }
    // All loads of the next round would not fit the registers.
    asm volatile("" ::: "memory");
  }
}

/// x or x + residual, which is stored as the sum, where addresses do not allow wide accesses. Apart
/// from the kernel, whose code is then in one piece.
template <typename X, int V, int kStep>
__device__ __noinline__ void LoadApart(const RowForwardParams& p, int64_t offset, int limit,
                                       PackedGranule<X, V>* granules) {
  using Granule = PackedGranule<X, V>;
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + offset;
  const StorageOf<X>* residual = static_cast<const StorageOf<X>*>(p.residual);
  StorageOf<X>* sum = static_cast<StorageOf<X>*>(p.residual_sum);
#pragma unroll 1
  for (int column = 0; column < limit; column += kStep) {
    Granule granule = Granule::Load(x + column, false);
    if (residual != nullptr) {
      granule = norm_device::Sum(granule, Granule::Load(residual + offset + column, false));
      granule.Store(sum + offset + column, false);
    }
    granules[column / kStep] = granule;
  }
}

/// x into registers. kPlain: see RowLaunchKind. Where there is a residual: x + residual, rounded to the type of x and stored as
/// the sum.
template <bool kPlain, typename X, int V, int kGranules, typename Owner>
__device__ void LoadHeldRow(const RowForwardParams& p, int64_t row_offset,
                            HeldRow<X, V, kGranules, Owner>& row) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  PackedGranule<X, V> granules[kGranules];
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + row_offset;
  if constexpr (kPlain) {
    LoadGranules(x, row, granules);
#pragma unroll
    for (int g = 0; g < kGranules; ++g) row.values[g] = granules[g];
    return;
  }
  const StorageOf<X>* residual = static_cast<const StorageOf<X>*>(p.residual) + row_offset;
  StorageOf<X>* sum = static_cast<StorageOf<X>*>(p.residual_sum) + row_offset;
  const bool at_once = CanAccessAtOnce<X, V>(p, x) &&
                       (p.residual == nullptr ||
                        (CanAccessAtOnce<X, V>(p, residual) && CanAccessAtOnce<X, V>(p, sum)));
  if (at_once) [[likely]] {
    LoadGranules(x, row, granules);
    if (p.residual != nullptr) [[unlikely]] {
      AddGranules(residual, row, granules);
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if (row.Holds(g)) granules[g].Store(sum + row.first + g * Row::kStep, true);
      }
    }
  } else {
    PackedGranule<X, V> apart[kGranules];
#pragma unroll
    for (int g = 0; g < kGranules; ++g) apart[g] = PackedGranule<X, V>::Zero();
    LoadApart<X, V, Row::kStep>(p, row_offset + row.first, min(row.limit, kGranules * Row::kStep),
                                apart);
#pragma unroll
    for (int g = 0; g < kGranules; ++g) granules[g] = apart[g];
  }
#pragma unroll
  for (int g = 0; g < kGranules; ++g) row.values[g] = granules[g];
}

template <bool kPlain, typename X, int V, int kGranules, typename Owner>
__device__ void LoadHeldRow(const RowForwardParams& p, int64_t row_offset,
                            SplitRow<X, V, kGranules, Owner>& row) {
  LoadHeldRow<kPlain>(p, row_offset, row.main);
  LoadHeldRow<kPlain>(p, row_offset, row.extra);
}

/// Where the elements of a row that LoadHeldRow loaded lie now.
template <bool kPlain, typename X>
__device__ const StorageOf<X>* LoadedRow(const RowForwardParams& p, int64_t row_offset) {
  const void* loaded = kPlain || p.residual == nullptr ? p.x : p.residual_sum;
  return static_cast<const StorageOf<X>*>(loaded) + row_offset;
}

}  // namespace norm_device
