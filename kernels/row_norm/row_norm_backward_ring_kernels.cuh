// The ring kernels that are built: one table for every activation type.
#pragma once

#include "row_norm/row_norm_backward_block.cuh"
#include "row_norm/row_norm_backward_groups.cuh"
#include "row_norm/row_norm_backward_tiles.cuh"

namespace norm_device {

template <typename Launch, typename X, RowKind kKind, int V, int kGranules, int kLanes,
          bool kAligned>
const void* TilesKernel() {
  return reinterpret_cast<const void*>(
      &RowBackwardTiles<X, kKind, V, kGranules, kLanes, kAligned, kTileThreads, Launch>);
}

template <typename Launch, typename X, RowKind kKind, int V, bool kAligned>
const void* SelectTiles(const RingKernel& kernel) {
  // Granules and lanes as in the plan.
  const auto is = [&](int granules, int lanes) {
    return kernel.granules == granules && kernel.lanes == lanes;
  };
  if constexpr (V > 1) {
    if (is(1, 4)) return TilesKernel<Launch, X, kKind, V, 1, 4, kAligned>();
    if (is(2, 4)) return TilesKernel<Launch, X, kKind, V, 2, 4, kAligned>();
    if (is(2, 8)) return TilesKernel<Launch, X, kKind, V, 2, 8, kAligned>();
    if (is(2, 16)) return TilesKernel<Launch, X, kKind, V, 2, 16, kAligned>();
    if (is(2, 32)) return TilesKernel<Launch, X, kKind, V, 2, 32, kAligned>();
  } else {
    if (is(4, 4)) return TilesKernel<Launch, X, kKind, V, 4, 4, kAligned>();
    if (is(4, 8)) return TilesKernel<Launch, X, kKind, V, 4, 8, kAligned>();
    if (is(8, 8)) return TilesKernel<Launch, X, kKind, V, 8, 8, kAligned>();
    if (is(8, 16)) return TilesKernel<Launch, X, kKind, V, 8, 16, kAligned>();
    if (is(8, 32)) return TilesKernel<Launch, X, kKind, V, 8, 32, kAligned>();
    if (is(9, 32)) return TilesKernel<Launch, X, kKind, V, 9, 32, kAligned>();
    if (is(16, 32)) return TilesKernel<Launch, X, kKind, V, 16, 32, kAligned>();
  }
  return nullptr;
}

template <typename Launch, typename X, RowKind kKind, int V, bool kAligned>
const void* SelectGroups(const RingKernel& kernel) {
  const auto granules = [&]<int kGranules>() {
    return reinterpret_cast<const void*>(
        &RowBackwardGroups<X, kKind, V, kGranules, kAligned, GroupKernelThreads(V * kGranules),
                           Launch>);
  };
  if constexpr (V > 1) {
    if constexpr (sizeof(StorageOf<X>) == 2) {
      if (kernel.granules == 2) return granules.template operator()<2>();
    }
    if (kernel.granules == 4) return granules.template operator()<4>();
  }
  return nullptr;
}

template <typename Launch, typename X, RowKind kKind, int kGranules>
const void* BlockKernel(const RingKernel& kernel) {
  if (kernel.method == RowBackwardMethod::kCluster) {
    return reinterpret_cast<const void*>(
        &RowBackwardBlock<X, kKind, 1, kGranules, false, kMaxRingThreads, 1, true, true, Launch>);
  }
  return kernel.pipelined ? reinterpret_cast<const void*>(
                                &RowBackwardBlock<X, kKind, 1, kGranules, false, kMaxRingThreads, 1,
                                                  false, true, Launch>)
                          : reinterpret_cast<const void*>(
                                &RowBackwardBlock<X, kKind, 1, kGranules, false, kMaxRingThreads, 1,
                                                  false, false, Launch>);
}

/// Wide rows are the group kernel's and the long-row kernel's. Granules as in BlockGranules.
template <typename Launch, typename X, RowKind kKind>
const void* SelectBlock(const RingKernel& kernel) {
  if (kernel.granules == 16) return BlockKernel<Launch, X, kKind, 16>(kernel);
  if constexpr (sizeof(StorageOf<X>) == sizeof(float)) {
    if (kernel.granules == 8) return BlockKernel<Launch, X, kKind, 8>(kernel);
    if constexpr (kKind == RowKind::kLayer) {
      if (kernel.granules == 9) return BlockKernel<Launch, X, kKind, 9>(kernel);
    }
  }
  return nullptr;
}

template <typename Launch, typename X, RowKind kKind, int V, bool kAligned>
const void* SelectRing(const RingKernel& kernel) {
  switch (kernel.method) {
    case RowBackwardMethod::kTiles:
      return SelectTiles<Launch, X, kKind, V, kAligned>(kernel);
    case RowBackwardMethod::kGroups:
      return SelectGroups<Launch, X, kKind, V, kAligned>(kernel);
    default:
      if constexpr (V == 1) return SelectBlock<Launch, X, kKind>(kernel);
      return nullptr;
  }
}

template <typename Launch, typename X, RowKind kKind>
const void* SelectRingWidth(const RingKernel& kernel) {
  if (!kernel.wide) return SelectRing<Launch, X, kKind, 1, false>(kernel);
  return kernel.aligned ? SelectRing<Launch, X, kKind, kWideElements<X>, true>(kernel)
                        : SelectRing<Launch, X, kKind, kWideElements<X>, false>(kernel);
}

template <typename Launch, typename X>
const void* SelectRingKernel(RowKind kind, const RingKernel& kernel) {
  return kind == RowKind::kRms ? SelectRingWidth<Launch, X, RowKind::kRms>(kernel)
                               : SelectRingWidth<Launch, X, RowKind::kLayer>(kernel);
}

}  // namespace norm_device
