// RMSNorm and LayerNorm forward with the row in registers: x (and residual) read once, y (and the
// sum) written once. Which thread holds which elements depends on hidden_size, dtype and device
// only (row_norm_tuning.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"
#include "primitives/row_owner.cuh"
#include "primitives/segments.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_output.cuh"
#include "row_norm/row_norm_forward_quantized.cuh"
#include "row_norm/row_norm_held_statistics.cuh"

namespace norm_device {

/// The requests of a launch: which one a block works for, and its number among that one's blocks.
template <RowLaunchKind kLaunch>
struct RowLaunchParams;

template <>
struct RowLaunchParams<RowLaunchKind::kSingle> {
  using Type = RowForwardParams;
  static constexpr bool kQuantizes = false;

  __device__ static const RowForwardParams& Request(const Type& params, int, int&, int&) {
    return params;
  }
};

template <>
struct RowLaunchParams<RowLaunchKind::kSegments> {
  using Type = RowForwardSegments;
  static constexpr bool kQuantizes = true;

  __device__ static const RowForwardParams& Request(const Type& table, int block, int& first_block,
                                                    int& blocks) {
    const int segment = FindSegment(table, block);
    first_block = table.first_block[segment];
    blocks = table.first_block[segment + 1] - first_block;
    return table.params[segment];
  }
};

template <typename X, int V>
__device__ PackedGranule<X, V> Sum(const PackedGranule<X, V>& a, const PackedGranule<X, V>& b) {
  ComputeOf<X> sums[V];
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = a.Wide(i) + b.Wide(i);
  return PackedGranule<X, V>::Rounded(sums);
}

/// Adds elements of memory to those in registers, rounded to their type, a few granules at a time.
template <bool kAtOnce, typename X, int V, int kGranules, typename Owner>
__device__ void AddHeldRow(const StorageOf<X>* added_row, HeldRow<X, V, kGranules, Owner>& row) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  using Granules = PackedGranule<X, V>;
  constexpr int kMost = (kGranules * Granules::kWords > 16 ? 8 : 16) / Granules::kWords;
  constexpr int kTogether = kGranules < kMost ? kGranules : kMost;
#pragma unroll
  for (int first = 0; first < kGranules; first += kTogether) {
    Granules added[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      added[i] = Granules::Zero();
      if (g < kGranules && row.Holds(g)) {
        added[i] = Granules::Load(added_row + row.first + g * Row::kStep, kAtOnce);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      if (g < kGranules && row.Holds(g)) row.values[g] = Sum(row.values[g], added[i]);
    }
    // All loads of the next round would not fit the registers.
    asm volatile("" ::: "memory");
  }
}

/// x into registers; x + residual, rounded to the type of x, where there is a residual. Elements past
/// the row's end are zero.
template <typename X, int V, int kGranules, typename Owner>
__device__ void LoadHeldRow(const RowForwardParams& p, int64_t row_offset,
                            HeldRow<X, V, kGranules, Owner>& row) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  using Granules = PackedGranule<X, V>;
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + row_offset;
  if (CanAccessAtOnce<X, V>(p, x)) {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      row.values[g] = Granules::Zero();
      if (row.Holds(g)) row.values[g] = Granules::Load(x + row.first + g * Row::kStep, true);
    }
  } else {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      row.values[g] = Granules::Zero();
      if (row.Holds(g)) row.values[g] = Granules::Load(x + row.first + g * Row::kStep, false);
    }
  }
  if (p.residual == nullptr) return;
  const StorageOf<X>* residual = static_cast<const StorageOf<X>*>(p.residual) + row_offset;
  if (CanAccessAtOnce<X, V>(p, residual)) {
    AddHeldRow<true>(residual, row);
  } else {
    AddHeldRow<false>(residual, row);
  }
}

template <typename X, int V, int kGranules, typename Owner>
__device__ void LoadHeldRow(const RowForwardParams& p, int64_t row_offset,
                            SplitRow<X, V, kGranules, Owner>& row) {
  LoadHeldRow(p, row_offset, row.main);
  LoadHeldRow(p, row_offset, row.extra);
}

/// Stores the sums that LoadHeldRow left in `row`: after every thread of the row has its pivot.
template <typename X, int V, int kGranules, typename Owner>
__device__ void StoreResidualSum(const RowForwardParams& p, int64_t row_offset,
                                 const HeldRow<X, V, kGranules, Owner>& row) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  StorageOf<X>* sum = static_cast<StorageOf<X>*>(p.residual_sum) + row_offset;
  const bool at_once = CanAccessAtOnce<X, V>(p, sum);
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    if (row.Holds(g)) row.values[g].Store(sum + row.first + g * Row::kStep, at_once);
  }
}

template <typename X, int V, int kGranules, typename Owner>
__device__ void StoreResidualSum(const RowForwardParams& p, int64_t row_offset,
                                 const SplitRow<X, V, kGranules, Owner>& row) {
  StoreResidualSum(p, row_offset, row.main);
  StoreResidualSum(p, row_offset, row.extra);
}

template <typename X>
__device__ PackedGranule<X, 1> MiddleOf(const PackedGranule<X, 1> (&values)[3]) {
  using C = ComputeOf<X>;
  const C smaller = fmin(values[0].Wide(0), values[1].Wide(0));
  const C larger = fmax(values[0].Wide(0), values[1].Wide(0));
  const C middle[1] = {fmax(smaller, fmin(larger, values[2].Wide(0)))};
  return PackedGranule<X, 1>::Rounded(middle);
}

/// A value that is likely close to the row's mean, the same for all its threads: the middle one of
/// three elements. Which one a NaN hides does not matter.
template <typename X, int V, int kGranules, typename Owner>
__device__ PackedGranule<X, 1> PivotOfRow(const RowForwardParams& p, int64_t row_offset,
                                          const HeldRow<X, V, kGranules, Owner>& row) {
  PackedGranule<X, 1> values[3];
  if constexpr (Owner::kWholeBlock) {
    const int64_t columns[3] = {0, p.hidden_size / 2, p.hidden_size - 1};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int64_t offset = row_offset + columns[i];
      values[i] = PackedGranule<X, 1>::Load(static_cast<const StorageOf<X>*>(p.x) + offset, true);
      if (p.residual != nullptr) {
        const auto* residual = static_cast<const StorageOf<X>*>(p.residual) + offset;
        values[i] = Sum(values[i], PackedGranule<X, 1>::Load(residual, true));
      }
    }
  } else {
    // The first elements of three lanes.
    constexpr int kLanes = Owner::kLanesPerRow;
    const int last = min(kLanes - 1, (static_cast<int>(p.hidden_size) - 1) / V);
    const int lanes[3] = {0, last / 2, last};
    const PackedGranule<X, 1> own = row.values[0].First();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
#pragma unroll
      for (int word = 0; word < PackedGranule<X, 1>::kWords; ++word) {
        values[i].words[word] = __shfl_sync(0xffffffffU, own.words[word], lanes[i], kLanes);
      }
    }
  }
  return MiddleOf(values);
}

template <typename X, int V, int kGranules, typename Owner>
__device__ PackedGranule<X, 1> PivotOfRow(const RowForwardParams& p, int64_t row_offset,
                                          const SplitRow<X, V, kGranules, Owner>& row) {
  return PivotOfRow(p, row_offset, row.main);
}

/// Sets what a thread holds past the row's end to the pivot, where deviations are zero.
template <typename X, int V, int kGranules, typename Owner>
__device__ void FillHeldRow(HeldRow<X, V, kGranules, Owner>& row,
                            const PackedGranule<X, 1>& pivot) {
  row.Fill(PackedGranule<X, V>::Repeated(pivot));
}

template <typename X, int V, int kGranules, typename Owner>
__device__ void FillHeldRow(SplitRow<X, V, kGranules, Owner>& row,
                            const PackedGranule<X, 1>& pivot) {
  FillHeldRow(row.main, pivot);
  FillHeldRow(row.extra, pivot);
}

/// Whether quantized rows of this kind never come here: row_norm_quantized_tuning.h takes whole
/// granules of 16 bytes, 32 elements a thread.
template <typename X, int V, int kElements, typename Owner>
inline constexpr bool kHasQuantizedKernel = V * sizeof(StorageOf<X>) == 16 && kElements <= 32 &&
                                            !std::is_same_v<Owner, ClusterOwner>;

/// Blocks of at most kThreads threads, kResidentThreads of which must fit a multiprocessor. Rows of
/// one warp have addresses of their own, which take registers.
template <typename Owner>
struct OwnerThreads {
  static constexpr int kThreads = Owner::kWholeBlock ? kMaxBlockRowThreads : kLaneRowThreads;
  static constexpr int kResidentThreads = Owner::kWholeBlock ? 1024 : 896;
  static constexpr int kBlocks = kResidentThreads / kThreads;
};

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, int V, int kElements, typename Owner>
__global__ void __launch_bounds__(OwnerThreads<Owner>::kThreads, OwnerThreads<Owner>::kBlocks)
    RowForwardHeld(const __grid_constant__ typename RowLaunchParams<kLaunch>::Type launch) {
  using X = typename Pair::Activation;
  using Launch = RowLaunchParams<kLaunch>;
  __shared__ typename Owner::Scratch scratch;
  Owner owner(scratch);
  int first_block = 0;
  int blocks = static_cast<int>(gridDim.x);
  const RowForwardParams& p =
      Launch::Request(launch, static_cast<int>(blockIdx.x), first_block, blocks);
  const RowAffine<Pair, kKind> affine(p);
  const int hidden_size = static_cast<int>(p.hidden_size);
  const int rows_per_block = Owner::rows_per_block();
  const int64_t row_step = static_cast<int64_t>(blocks / owner.blocks_per_row()) * rows_per_block;

  // Lanes that share a warp stay together past the last row: they take part in its shuffles.
  const int64_t first_row =
      static_cast<int64_t>((static_cast<int>(blockIdx.x) - first_block) / owner.blocks_per_row()) *
      rows_per_block;
  for (int64_t block_row = first_row; block_row < p.rows; block_row += row_step) {
    const int64_t row_index = block_row + Owner::row_in_block();
    const bool exists = Owner::kWholeBlock || row_index < p.rows;
    const int64_t row_offset = row_index * p.hidden_size;
    RowHold<X, V, kElements, Owner> row(owner, exists ? hidden_size : 0);
    LoadHeldRow(p, row_offset, row);
    auto pivot = PackedGranule<X, 1>::Zero();
    if constexpr (kKind == RowKind::kLayer) {
      if (!Owner::kWholeBlock || exists) pivot = PivotOfRow(p, row_offset, row);
      FillHeldRow(row, pivot);
    }
    const auto stats = HeldRowStatistics<kKind>(row, pivot.Wide(0), owner, hidden_size,
                                                p.inverse_size, RowEps{p.eps, p.smallest_square});
    if (p.residual != nullptr) StoreResidualSum(p, row_offset, row);
    const bool first = exists && owner.IsFirstThread();
    if (first) StoreStatistics<kKind>(p, row_index, stats);
    if constexpr (Launch::kQuantizes && std::is_same_v<ComputeOf<X>, float> &&
                  !kHasQuantizedKernel<X, V, kElements, Owner>) {
      if (p.output != RowOutput::kInputType) {
        WriteQuantizedRow(p, row, row_index, first, affine, stats, owner);
        continue;
      }
    }
    WriteRow(p, row, row_offset, affine, stats);
  }
}

}  // namespace norm_device
