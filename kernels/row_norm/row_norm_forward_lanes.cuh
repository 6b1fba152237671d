// RMSNorm and LayerNorm forward of short wide rows, which lanes of a warp own: plain requests with all
// parameters. A thread has part in several rows; their sums travel together, and weight and bias are
// fetched once for all. Without the code of RowForwardHeld for other requests: a small launch lasts
// not much longer than its instructions take to come from memory.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

template <typename Pair, RowMethod kMethod>
struct LaneRowsShape : HeldShape<Pair, kMethod, true> {
  using Base = HeldShape<Pair, kMethod, true>;
  static constexpr int kRows = LaneRowsTogether(Base::kBytes);  // of a thread
  static constexpr int kThreads = kLaneRowThreads;
  static constexpr int kBlocks = LaneRowsResidentThreads(Base::kBytes) / kThreads;
};

template <typename Pair, RowKind kKind, RowMethod kMethod, typename Owner>
__global__ void __launch_bounds__(LaneRowsShape<Pair, kMethod>::kThreads,
                                  LaneRowsShape<Pair, kMethod>::kBlocks)
    RowForwardLanes(const __grid_constant__ RowForwardParams p) {
  using X = typename Pair::Activation;
  using Shape = LaneRowsShape<Pair, kMethod>;
  constexpr int V = Shape::V;
  constexpr int kGranules = Shape::kElements / V;
  constexpr int kRows = Shape::kRows;
  using Row = HeldRow<X, V, kGranules, Owner>;
  using Granule = PackedGranule<X, V>;
  __shared__ typename Owner::Scratch scratch;
  AwaitPreviousLaunch();
  AllowDependentLaunch();
  Owner owner(scratch);
  const RowAffine<Pair, kKind> affine(p);
  const int hidden_size = static_cast<int>(p.hidden_size);
  constexpr int kOwners = Shape::kThreads / Owner::kLanesPerRow;
  const int64_t first_row =
      (static_cast<int64_t>(blockIdx.x) * kOwners + Owner::row_in_block()) * kRows;
  const int64_t first_offset = first_row * hidden_size;
  const int64_t rows_left = p.rows - first_row;

  // Lanes that share a warp stay together past the last row: they take part in its shuffles.
  Row rows[kRows];
  const StorageOf<X>* sources[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const int64_t offset = first_offset + n * hidden_size;
    rows[n] = Row(owner, n < rows_left ? hidden_size : 0);
    sources[n] = static_cast<const StorageOf<X>*>(p.x) + offset;
    LoadHeldRow<true>(p, offset, rows[n]);
  }
  RowStats<ComputeOf<X>> stats[kRows];
  HeldRowStatistics<kKind, X>(rows, sources, owner, p.inverse_size,
                              RowEps{p.eps, p.smallest_square}, stats);
  if (owner.IsFirstThread()) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (n < rows_left) StoreStatistics<kKind>(p, first_row + n, stats[n]);
    }
  }
  StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + first_offset;
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    const int column = rows[0].first + g * Row::kStep;
    const auto words = affine.template FetchPresent<V>(column, column < hidden_size);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      ComputeOf<X> values[V];
      affine.template Apply<V>(rows[n].values[g], words, RowNormalizer<kKind, X>(stats[n]), false,
                               values);
      auto granule = Granule::Rounded(values);
      granule.Forget();  // not computed in the branch: granules can be under way together
      if (rows[n].Holds(g)) granule.Store(y + n * hidden_size + column, true);
    }
  }
}

}  // namespace norm_device
