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

/// x into registers; x + residual, rounded to the type of x and stored as the sum, where there is a
/// residual. Elements past the row's end are zero.
template <typename X, int V, int kGranules, typename Owner>
__device__ void LoadHeldRow(const RowForwardParams& p, int64_t row_offset,
                            HeldRow<X, V, kGranules, Owner>& row) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + row_offset + row.first;
  if (V == 1 || p.aligned) {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      row.values[g] = PackedGranule<X, V>::Zero();
      if (row.Holds(g)) row.values[g] = PackedGranule<X, V>::Load(x + g * Row::kStep, true);
    }
  } else {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      row.values[g] = PackedGranule<X, V>::Zero();
      if (row.Holds(g)) row.values[g] = PackedGranule<X, V>::Load(x + g * Row::kStep, false);
    }
  }
  if (p.residual == nullptr) return;
  const StorageOf<X>* residual =
      static_cast<const StorageOf<X>*>(p.residual) + row_offset + row.first;
  StorageOf<X>* sum = static_cast<StorageOf<X>*>(p.residual_sum) + row_offset + row.first;
  constexpr int kAtOnce = kGranules < 4 ? kGranules : 4;
#pragma unroll
  for (int first = 0; first < kGranules; first += kAtOnce) {
    PackedGranule<X, V> added[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      added[i] = PackedGranule<X, V>::Zero();
      if (first + i < kGranules && row.Holds(first + i)) {
        added[i] = PackedGranule<X, V>::Load(residual + (first + i) * Row::kStep, p.aligned);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int g = first + i;
      if (g < kGranules && row.Holds(g)) {
        row.values[g] = Sum(row.values[g], added[i]);
        row.values[g].Store(sum + g * Row::kStep, p.aligned);
      }
    }
  }
}

/// Blocks of at most kThreads threads, kResidentThreads of which must fit a multiprocessor.
template <typename Owner>
struct OwnerThreads {
  static constexpr int kThreads = Owner::kWholeBlock ? kMaxBlockRowThreads : kLaneRowThreads;
  static constexpr int kResidentThreads = 1024;
  static constexpr int kBlocks = kResidentThreads / kThreads;
};

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, int V, int kElements, typename Owner>
__global__ void __launch_bounds__(OwnerThreads<Owner>::kThreads, OwnerThreads<Owner>::kBlocks)
    RowForwardHeld(const __grid_constant__ typename RowLaunchParams<kLaunch>::Type launch) {
  using X = typename Pair::Activation;
  using Launch = RowLaunchParams<kLaunch>;
  constexpr int kGranules = kElements / V;
  __shared__ typename Owner::Scratch scratch;
  Owner owner(scratch);
  int first_block = 0;
  int blocks = static_cast<int>(gridDim.x);
  const RowForwardParams& p =
      Launch::Request(launch, static_cast<int>(blockIdx.x), first_block, blocks);
  const RowOutputWriter<Pair, kKind, V, Launch::kQuantizes> writer(p);
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
    HeldRow<X, V, kGranules, Owner> row(owner, exists ? hidden_size : 0);
    LoadHeldRow(p, row_offset, row);
    const auto stats =
        HeldRowStatistics<kKind, ComputeOf<X>>(row, owner, hidden_size, p.inverse_size, p.eps);
    const bool first = exists && owner.IsFirstThread();
    if (first) StoreStatistics<kKind>(p, row_index, stats);
    writer.Write(row, row_index, first, stats, owner);
  }
}

}  // namespace norm_device
