// The strip kernels of row-norm forward that are built, by shape.
#pragma once

#include "row_norm/row_norm_strip_forward.cuh"

namespace norm_device {

template <RowLaunchKind kLaunch, typename X, RowKind kKind, int kShape = 0>
const void* StripForwardOfShape(int shape) {
  if (shape == kShape) {
    return reinterpret_cast<const void*>(&RowForwardStrips<kLaunch, X, kKind, kShape>);
  }
  if constexpr (kShape + 1 < kStripShapeCount) {
    return StripForwardOfShape<kLaunch, X, kKind, kShape + 1>(shape);
  }
  return nullptr;
}

template <typename X>
const void* SelectStripForward(RowLaunchKind launch, RowKind kind, int shape) {
  if (launch == RowLaunchKind::kSingle) {
    return kind == RowKind::kRms
               ? StripForwardOfShape<RowLaunchKind::kSingle, X, RowKind::kRms>(shape)
               : StripForwardOfShape<RowLaunchKind::kSingle, X, RowKind::kLayer>(shape);
  }
  return kind == RowKind::kRms
             ? StripForwardOfShape<RowLaunchKind::kSegments, X, RowKind::kRms>(shape)
             : StripForwardOfShape<RowLaunchKind::kSegments, X, RowKind::kLayer>(shape);
}

}  // namespace norm_device
