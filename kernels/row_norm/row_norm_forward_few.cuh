// RMSNorm and LayerNorm forward of few rows, which no other blocks wait for: a row in as many blocks
// as a thread has granules. Each reads all of it, hence the statistics and bits that one block gives
// it, and writes its own share: weight, bias and y pass through several multiprocessors at once, and
// those loads are under way together with those of x.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

template <typename Pair, RowMethod kMethod>
struct FewRowsShape : HeldShape<Pair, kMethod, true> {
  using Base = HeldShape<Pair, kMethod, true>;
  static constexpr int kBlocks = RowFewBlocks(kMethod, Base::kBytes);  // of a row
  static_assert(kBlocks * Base::V == Base::kElements);
};

/// x and y are apart: a block may write while another one reads.
template <typename Pair, RowKind kKind, RowMethod kMethod>
__global__ void __launch_bounds__(HeldShape<Pair, kMethod, true>::kThreads.of_block)
    RowForwardFew(const __grid_constant__ RowForwardParams p) {
  using X = typename Pair::Activation;
  using Shape = FewRowsShape<Pair, kMethod>;
  using Granule = PackedGranule<X, Shape::V>;
  using Row = HeldRow<X, Shape::V, Shape::kBlocks, BlockOwner>;
  __shared__ BlockOwner::Scratch scratch;
  AllowDependentLaunch();
  AwaitPreviousLaunch();
  BlockOwner owner(scratch);
  const RowAffine<Pair, kKind> affine(p);
  const int block = static_cast<int>(blockIdx.x);
  const int64_t row_index = block / Shape::kBlocks;
  const int64_t row_offset = row_index * p.hidden_size;
  Row row(owner, static_cast<int>(p.hidden_size));
  LoadHeldRow<true>(p, row_offset, row);

  const int part = block % Shape::kBlocks;
  const int column = row.first + part * Row::kStep;
  const bool holds = row.Holds(part);
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + row_offset;
  const Granule own = holds ? Granule::Load(x + column, true) : Granule::Zero();
  const auto words = affine.template Fetch<Shape::V>(column, holds, true);
  const auto stats =
      HeldRowStatistics<kKind, X>(row, x, owner, p.inverse_size, RowEps{p.eps, p.smallest_square});
  if (part == 0 && owner.IsFirstThread()) StoreStatistics<kKind>(p, row_index, stats);
  const RowNormalizer<kKind, X> normalize(stats);
  ComputeOf<X> y[Shape::V];
  affine.template Apply<Shape::V>(own, words, normalize, false, y);
  if (holds) {
    Granule::Rounded(y).Store(static_cast<StorageOf<X>*>(p.y) + row_offset + column, true);
  }
}

}  // namespace norm_device
