// The ring kernels of one ElementPair.
#pragma once

#include "row_norm/row_norm_forward_ring.cuh"

namespace norm_device {

template <typename Pair, RowKind kKind, bool kLong>
const void* SelectRowRing(RowLaunchKind launch, bool plain) {
  constexpr RowLaunchKind kSingle = RowLaunchKind::kSingle;
  constexpr RowLaunchKind kSegments = RowLaunchKind::kSegments;
  if (launch == kSegments) {
    return reinterpret_cast<const void*>(&RowForwardRing<kSegments, Pair, kKind, kLong, false>);
  }
  return plain ? reinterpret_cast<const void*>(&RowForwardRing<kSingle, Pair, kKind, kLong, true>)
               : reinterpret_cast<const void*>(&RowForwardRing<kSingle, Pair, kKind, kLong, false>);
}

template <typename Pair>
const void* RowRingKernel(RowLaunchKind launch, RowKind kind, RowMethod method, bool plain) {
  const bool is_long = method == RowMethod::kLongRing;
  if (kind == RowKind::kRms) {
    return is_long ? SelectRowRing<Pair, RowKind::kRms, true>(launch, plain)
                   : SelectRowRing<Pair, RowKind::kRms, false>(launch, plain);
  }
  return is_long ? SelectRowRing<Pair, RowKind::kLayer, true>(launch, plain)
                 : SelectRowRing<Pair, RowKind::kLayer, false>(launch, plain);
}

}  // namespace norm_device
