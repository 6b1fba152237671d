// The kernels of long rows that are built: one table for every activation type.
#pragma once

#include <utility>

#include "row_norm/row_norm_backward_long.cuh"

namespace norm_device {

template <typename Launch, typename X, RowKind kKind, bool kPlain>
const void* SelectLongTile(int index) {
  const void* kernel = nullptr;
  const auto select = [&]<int kIndex>() {
    constexpr LongTile kTile = kLongTiles[kIndex];
    if constexpr (LongTileServes(kIndex, kKind, static_cast<int>(sizeof(StorageOf<X>)))) {
      if (kIndex == index) {
        kernel = reinterpret_cast<const void*>(
            &RowBackwardLong<X, kKind, kTile.granules, kTile.rows, kTile.max_threads,
                             kTile.together, kTile.apart, kPlain, Launch>);
      }
    }
  };
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (select.template operator()<kIndices>(), ...);
  }
  (std::make_integer_sequence<int, kLongTileCount>());
  return kernel;
}

template <typename X, RowKind kKind>
const void* SelectLong(BackwardLaunchKind launch, const RingKernel& kernel) {
  if (launch == BackwardLaunchKind::kSegments) {
    return SelectLongTile<RingBackwardSegments, X, kKind, false>(kernel.granules);
  }
  if constexpr (kKind == RowKind::kLayer) {
    if (launch == BackwardLaunchKind::kFewRows) {
      return SelectLongTile<RingBackwardFewRows, X, kKind, false>(kernel.granules);
    }
  }
  if (kernel.plain) {
    return SelectLongTile<RingBackwardParams, X, kKind, true>(kernel.granules);
  }
  return SelectLongTile<RingBackwardParams, X, kKind, false>(kernel.granules);
}

template <typename X>
const void* SelectLongKernel(BackwardLaunchKind launch, RowKind kind, const RingKernel& kernel) {
  return kind == RowKind::kRms ? SelectLong<X, RowKind::kRms>(launch, kernel)
                               : SelectLong<X, RowKind::kLayer>(launch, kernel);
}

}  // namespace norm_device
