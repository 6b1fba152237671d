// LayerNorm forward of wide rows of 16-bit elements that a block owns: plain requests with weight and
// bias. f32 weights are fetched once for two rows, whose sums travel together; others are few enough
// to be under way while the statistics are taken.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

template <typename Pair, RowMethod kMethod>
struct BlockRowsShape : HeldShape<Pair, kMethod, true> {
  using Base = HeldShape<Pair, kMethod, true>;
  static constexpr int kGranules = Base::kElements / Base::V;
  static constexpr int kRows = PlainBlockRows(
      kMethod, Base::kBytes, static_cast<int>(sizeof(StorageOf<typename Pair::Weight>)));
  static constexpr int kMostThreads = Base::kThreads.of_block;
  static constexpr int kBlocks = PlainBlockResidentThreads(kRows) / kMostThreads;
  /// Granules whose weight and bias are fetched together; the first ones early.
  static constexpr int kTogether = 2;
  static constexpr bool kEarly = kRows == 1;
  static_assert(kGranules % kTogether == 0);
};

template <typename Pair, RowMethod kMethod>
__global__ void __launch_bounds__(BlockRowsShape<Pair, kMethod>::kMostThreads,
                                  BlockRowsShape<Pair, kMethod>::kBlocks)
    RowForwardBlock(const __grid_constant__ RowForwardParams p) {
  using X = typename Pair::Activation;
  using Shape = BlockRowsShape<Pair, kMethod>;
  constexpr RowKind kKind = RowKind::kLayer;
  constexpr int V = Shape::V;
  constexpr int kRows = Shape::kRows;
  constexpr int kTogether = Shape::kTogether;
  using Row = HeldRow<X, V, Shape::kGranules, PackedBlockOwner>;
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
  RowAffineWords<typename Pair::Weight, V> words[kTogether];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      words[i] = affine.template FetchPresent<V>(rows[0].first + (first + i) * Row::kStep,
                                                 rows[0].Holds(first + i));
    }
  };
  if (Shape::kEarly) fetch(0);
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
  for (int first = 0; first < Shape::kGranules; first += kTogether) {
    if (!Shape::kEarly || first > 0) fetch(first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        ComputeOf<X> values[V];
        affine.template Apply<V>(rows[n].values[g], words[i], RowNormalizer<kKind, X>(stats[n]),
                                 false, values);
        auto granule = Granule::Rounded(values);
        granule.Forget();  // not computed in the branch: granules can be under way together
        if (rows[n].Holds(g)) {
          granule.Store(y + n * hidden_size + rows[n].first + g * Row::kStep, true);
        }
      }
    }
  }
}

}  // namespace norm_device
