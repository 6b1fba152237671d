// RMSNorm and LayerNorm forward with the row in registers: x (and residual) read once, y (and the
// sum) written once. Which thread holds which elements depends on hidden_size, dtype and device
// only (row_norm_tuning.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/cluster_owner.cuh"
#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "primitives/segments.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_input.cuh"
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
struct RowLaunchParams<RowLaunchKind::kPlain> : RowLaunchParams<RowLaunchKind::kSingle> {};

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

/// Whether quantized rows of this kind never come here: row_norm_quantized_tuning.h takes whole
/// granules of 16 bytes, 32 elements a thread.
template <typename X, int V, int kElements, typename Owner>
inline constexpr bool kHasQuantizedKernel = V * sizeof(StorageOf<X>) == 16 && kElements <= 32 &&
                                            !std::is_same_v<Owner, ClusterOwner>;

/// What a method means for the rows of an ElementPair. `kWide`: see RowForwardKernel.
template <typename Pair, RowMethod kMethod, bool kWide>
struct HeldShape {
  using X = typename Pair::Activation;
  static constexpr int kBytes = static_cast<int>(sizeof(StorageOf<X>));
  static constexpr int kElements = HeldRowElements(kMethod, kBytes, kWide);  // of a thread
  static constexpr int V = kWide ? kWideElements<X> : NarrowRowAccess(kMethod, kBytes);
  static constexpr RowThreads kThreads = HeldRowThreads(kMethod, kBytes);
};

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, RowMethod kMethod, bool kWide,
          typename Owner>
__global__ void __launch_bounds__(HeldShape<Pair, kMethod, kWide>::kThreads.of_block,
                                  HeldShape<Pair, kMethod, kWide>::kThreads.blocks)
    RowForwardHeld(const __grid_constant__ typename RowLaunchParams<kLaunch>::Type launch) {
  using X = typename Pair::Activation;
  using Launch = RowLaunchParams<kLaunch>;
  using Shape = HeldShape<Pair, kMethod, kWide>;
  constexpr bool kPlain = kLaunch == RowLaunchKind::kPlain;
  constexpr int V = Shape::V;
  constexpr int kElements = Shape::kElements;
  __shared__ typename Owner::Scratch scratch;
  AllowDependentLaunch();
  AwaitPreviousLaunch();
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
    LoadHeldRow<kPlain>(p, row_offset, row);
    const auto stats =
        HeldRowStatistics<kKind, X>(row, LoadedRow<kPlain, X>(p, row_offset), owner, p.inverse_size,
                                    RowEps{p.eps, p.smallest_square});
    const bool first = exists && owner.IsFirstThread();
    if (first) StoreStatistics<kKind>(p, row_index, stats);
    if constexpr (Launch::kQuantizes && std::is_same_v<ComputeOf<X>, float> &&
                  !kHasQuantizedKernel<X, V, kElements, Owner>) {
      if (p.output != RowOutput::kInputType) {
        WriteQuantizedRow(p, row, row_index, first, affine, stats, owner);
        continue;
      }
    }
    WriteRow<kPlain>(p, row, row_offset, affine, stats);
  }
}

}  // namespace norm_device
