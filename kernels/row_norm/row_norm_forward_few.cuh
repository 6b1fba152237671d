// RMSNorm and LayerNorm forward of few rows: plain requests whose blocks need not share a
// multiprocessor with others, so that registers are plenty: weight and bias are under way together
// with x. A very few rows have as many blocks each as a thread has granules: each reads the whole row,
// hence has the statistics and bits of one block, and writes its own share, so that weight, bias and y
// pass through several multiprocessors at once.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

/// `kBlocks`: of a row; if there are several, x and y are apart: a block may write while another one
/// reads.
template <typename Pair, RowKind kKind, RowMethod kMethod, int kBlocks>
__global__ void __launch_bounds__(HeldShape<Pair, kMethod, true>::kThreads.of_block)
    RowForwardFew(const __grid_constant__ RowForwardParams p) {
  using X = typename Pair::Activation;
  using Shape = HeldShape<Pair, kMethod, true>;
  constexpr int V = Shape::V;
  constexpr int kGranules = Shape::kElements / V;
  constexpr int kOwn = kGranules / kBlocks;
  using Granule = PackedGranule<X, V>;
  using Row = HeldRow<X, V, kGranules, BlockOwner>;
  __shared__ BlockOwner::Scratch scratch;
  AwaitPreviousLaunch();
  BlockOwner owner(scratch);
  const RowAffine<Pair, kKind> affine(p);
  const int block = static_cast<int>(blockIdx.x);
  const int64_t row_index = block / kBlocks;
  const int64_t row_offset = row_index * p.hidden_size;
  const StorageOf<X>* x = static_cast<const StorageOf<X>*>(p.x) + row_offset;
  Row row(owner, static_cast<int>(p.hidden_size));
  LoadHeldRow<true>(p, row_offset, row);
  AllowDependentLaunch();  // not sooner: launches that only wait would pile up

  const int first = block % kBlocks * kOwn;
  Granule own[kOwn];
  RowAffineWords<typename Pair::Weight, V> words[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = row.first + (first + i) * Row::kStep;
    const bool holds = row.Holds(first + i);
    own[i] = Granule::Zero();
    if (kBlocks > 1 && holds) own[i] = Granule::Load(x + column, true);
    words[i] = affine.template Fetch<V>(column, holds, true);
  }
  const auto stats =
      HeldRowStatistics<kKind, X>(row, x, owner, p.inverse_size, RowEps{p.eps, p.smallest_square});
  if (first == 0 && owner.IsFirstThread()) StoreStatistics<kKind>(p, row_index, stats);
  const RowNormalizer<kKind, X> normalize(stats);
  StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + row_offset + row.first;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    ComputeOf<X> values[V];
    if constexpr (kBlocks > 1) {
      affine.template Apply<V>(own[i], words[i], normalize, false, values);
    } else {
      affine.template Apply<V>(row.values[i], words[i], normalize, false, values);
    }
    auto granule = Granule::Rounded(values);
    granule.Forget();  // not computed in the branch: granules can be under way together
    if (row.Holds(first + i)) granule.Store(y + (first + i) * Row::kStep, true);
  }
}

}  // namespace norm_device
