// The strip kernels of row-norm backward that are built, by shape.
#pragma once

#include "row_norm/row_norm_strip_backward.cuh"

namespace norm_device {

template <typename Launch, typename X, RowKind kKind, int kShape = kFirstBackwardStripShape>
const void* StripBackwardOfShape(int shape) {
  if (shape == kShape) {
    return reinterpret_cast<const void*>(&RowBackwardStrips<Launch, X, kKind, kShape>);
  }
  if constexpr (kShape + 1 < kStripShapeCount) {
    return StripBackwardOfShape<Launch, X, kKind, kShape + 1>(shape);
  }
  return nullptr;
}

template <typename X>
const void* SelectStripBackward(BackwardLaunchKind launch, RowKind kind, int shape) {
  if (launch == BackwardLaunchKind::kSingle) {
    return kind == RowKind::kRms
               ? StripBackwardOfShape<RingBackwardParams, X, RowKind::kRms>(shape)
               : StripBackwardOfShape<RingBackwardParams, X, RowKind::kLayer>(shape);
  }
  if (launch == BackwardLaunchKind::kFewRows) {
    return StripBackwardOfShape<RingBackwardFewRows, X, RowKind::kLayer>(shape);
  }
  return kind == RowKind::kRms
             ? StripBackwardOfShape<RingBackwardSegments, X, RowKind::kRms>(shape)
             : StripBackwardOfShape<RingBackwardSegments, X, RowKind::kLayer>(shape);
}

}  // namespace norm_device
