// The row-norm forward kernels of one ElementPair, by method.
#pragma once

#include <type_traits>

#include "row_norm/row_norm_forward.cuh"
#include "row_norm/row_norm_forward_few.cuh"
#include "row_norm/row_norm_forward_lanes.cuh"
#include "row_norm/row_norm_forward_streaming.cuh"

namespace norm_device {

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, bool kWide>
struct RowForwardMethods {
  using X = typename Pair::Activation;

  template <RowMethod kMethod, typename Owner>
  static const void* Held() {
    // Such rows of 16-bit elements are strips, if their outputs are not quantized.
    constexpr bool kStripsOnly = kLaunch == RowLaunchKind::kSingle && !kWide &&
                                 sizeof(StorageOf<X>) == 2 &&
                                 (kMethod == RowMethod::kLanes8 || kMethod == RowMethod::kLanes16 ||
                                  kMethod == RowMethod::kWarp);
    constexpr bool kLaneRows = kLaunch == RowLaunchKind::kPlain &&
                               HasLaneRowsKernel(kMethod, static_cast<int>(sizeof(StorageOf<X>)));
    if constexpr (kStripsOnly) {
      return nullptr;
    } else if constexpr (kLaneRows) {
      return reinterpret_cast<const void*>(&RowForwardLanes<Pair, kKind, kMethod, Owner>);
    } else if constexpr (kLaunch == RowLaunchKind::kPlain && kKind != RowKind::kRms) {
      return nullptr;  // row_norm_forward_block.cuh
    } else {
      return reinterpret_cast<const void*>(
          &RowForwardHeld<kLaunch, Pair, kKind, kMethod, kWide, Owner>);
    }
  }

  static const void* Select(RowMethod method) {
    switch (method) {
      case RowMethod::kLanes4:
        return Held<RowMethod::kLanes4, LaneRow<4>>();
      case RowMethod::kLanes8:
        return Held<RowMethod::kLanes8, LaneRow<8>>();
      case RowMethod::kLanes16:
        return Held<RowMethod::kLanes16, LaneRow<16>>();
      case RowMethod::kWarp:
        return Held<RowMethod::kWarp, LaneRow<32>>();
      case RowMethod::kBlock:
        return Held<RowMethod::kBlock, BlockOwner>();
      case RowMethod::kBlockLong:
        return Held<RowMethod::kBlockLong, BlockOwner>();
      case RowMethod::kCluster:
        return Held<RowMethod::kCluster, ClusterOwner>();
      case RowMethod::kRing:
      case RowMethod::kLongRing:
      case RowMethod::kStrips:
        break;  // kernels of their own
      case RowMethod::kStreaming:
        if constexpr (kLaunch == RowLaunchKind::kPlain && kKind != RowKind::kRms) return nullptr;
        return reinterpret_cast<const void*>(&RowForwardStreaming < kLaunch, Pair, kKind,
                                             kWide ? kWideElements<X> : 1 >);
    }
    return nullptr;
  }
};

template <RowLaunchKind kLaunch, typename Pair>
const void* SelectRowForward(RowKind kind, RowMethod method, bool wide) {
  if (kind == RowKind::kRms) {
    return wide ? RowForwardMethods<kLaunch, Pair, RowKind::kRms, true>::Select(method)
                : RowForwardMethods<kLaunch, Pair, RowKind::kRms, false>::Select(method);
  }
  return wide ? RowForwardMethods<kLaunch, Pair, RowKind::kLayer, true>::Select(method)
              : RowForwardMethods<kLaunch, Pair, RowKind::kLayer, false>::Select(method);
}

/// Of kFewRows, and of kSpreadRows if kSpread.
template <typename Pair, RowKind kKind, bool kSpread>
const void* SelectFewRows(RowMethod method) {
  constexpr int kBytes = static_cast<int>(sizeof(StorageOf<typename Pair::Activation>));
  constexpr int kBlocks = kSpread ? SpreadRowBlocks(RowMethod::kBlock, kBytes) : 1;
  constexpr int kLongBlocks = kSpread ? SpreadRowBlocks(RowMethod::kBlockLong, kBytes) : 1;
  if constexpr (kBlocks > 0 && kBytes < 8) {
    if (method == RowMethod::kBlock) {
      return reinterpret_cast<const void*>(&RowForwardFew<Pair, kKind, RowMethod::kBlock, kBlocks>);
    }
    if (method == RowMethod::kBlockLong) {
      return reinterpret_cast<const void*>(
          &RowForwardFew<Pair, kKind, RowMethod::kBlockLong, kLongBlocks>);
    }
  }
  return nullptr;
}

template <typename Pair>
const void* RowForwardKernel(RowLaunchKind launch, RowKind kind, RowMethod method, bool wide) {
  switch (launch) {
    case RowLaunchKind::kSingle:
      return SelectRowForward<RowLaunchKind::kSingle, Pair>(kind, method, wide);
    case RowLaunchKind::kPlain:
      return kind == RowKind::kRms
                 ? RowForwardMethods<RowLaunchKind::kPlain, Pair, RowKind::kRms, true>::Select(
                       method)
                 : RowForwardMethods<RowLaunchKind::kPlain, Pair, RowKind::kLayer, true>::Select(
                       method);
    case RowLaunchKind::kFewRows:
      return kind == RowKind::kRms ? SelectFewRows<Pair, RowKind::kRms, false>(method)
                                   : SelectFewRows<Pair, RowKind::kLayer, false>(method);
    case RowLaunchKind::kSpreadRows:
      return kind == RowKind::kRms ? SelectFewRows<Pair, RowKind::kRms, true>(method)
                                   : SelectFewRows<Pair, RowKind::kLayer, true>(method);
    case RowLaunchKind::kSegments:
      break;
  }
  return SelectRowForward<RowLaunchKind::kSegments, Pair>(kind, method, wide);
}

}  // namespace norm_device
