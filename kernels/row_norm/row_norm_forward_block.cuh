// LayerNorm forward of wide rows that a block owns: plain requests with weight and bias. Weight and
// bias are fetched once for all rows of the block, whose sums travel together; where there are
// registers for it, the first are under way while the statistics are taken.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_block_device.h"
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

/// The other parameters are those of BlockRows.
template <typename Pair, RowMethod kMethod, int kRows, int kThreads, int kBlocks,
          AffineFetch kFetch>
__global__ void __launch_bounds__(kThreads, kBlocks)
    RowForwardBlock(const __grid_constant__ RowForwardParams p) {
  using X = typename Pair::Activation;
  using Shape = HeldShape<Pair, kMethod, true>;
  constexpr RowKind kKind = RowKind::kLayer;
  constexpr int V = Shape::V;
  constexpr int kGranules = Shape::kElements / V;
  constexpr int kTogether = 2;  // granules whose weight and bias are fetched at once
  constexpr bool kRolling = kFetch == AffineFetch::kRolling;
  static_assert(kGranules % kTogether == 0);
  using Row = HeldRow<X, V, kGranules, PackedBlockOwner>;
  using Granule = PackedGranule<X, V>;
  __shared__ PackedBlockOwner::Scratch scratch;
  AllowDependentLaunch();
  AwaitPreviousLaunch();
  PackedBlockOwner owner(scratch);
  const RowAffine<Pair, kKind> affine(p);
  const int hidden_size = static_cast<int>(p.hidden_size);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t first_offset = first_row * hidden_size;
  const int64_t rows_left = p.rows - first_row;

  Row rows[kRows];
  const StorageOf<X>* sources[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const int64_t offset = first_offset + n * hidden_size;
    rows[n] = Row(owner, n < rows_left ? hidden_size : 0);
    sources[n] = static_cast<const StorageOf<X>*>(p.x) + offset;
    LoadHeldRow<true>(p, offset, rows[n]);
  }
  // All are never there at once.
  RowAffineWords<typename Pair::Weight, V> words[kRolling ? kGranules : kTogether];
  const auto fetch = [&](int g) {
    words[kRolling ? g : g % kTogether] =
        affine.template FetchPresent<V>(rows[0].first + g * Row::kStep, rows[0].Holds(g));
  };
  if (kFetch != AffineFetch::kLate) {
#pragma unroll
    for (int g = 0; g < kTogether; ++g) fetch(g);
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
  for (int first = 0; first < kGranules; first += kTogether) {
    if (!kRolling && (first > 0 || kFetch == AffineFetch::kLate)) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) fetch(first + i);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        ComputeOf<X> values[V];
        affine.template Apply<V>(rows[n].values[g], words[kRolling ? g : i],
                                 RowNormalizer<kKind, X>(stats[n]), false, values);
        auto granule = Granule::Rounded(values);
        granule.Forget();  // not computed in the branch: granules can be under way together
        if (rows[n].Holds(g)) {
          granule.Store(y + n * hidden_size + rows[n].first + g * Row::kStep, true);
        }
      }
      if (kRolling && g + kTogether < kGranules) fetch(g + kTogether);
    }
  }
}

}  // namespace norm_device
