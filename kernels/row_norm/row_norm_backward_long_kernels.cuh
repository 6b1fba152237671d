// The kernels of long rows that are built: one table for every activation type.
#pragma once

#include "row_norm/row_norm_backward_long.cuh"

namespace norm_device {

template <typename Launch, typename X, RowKind kKind, LongScale kScale, bool kPlain>
const void* SelectLongGranules(int granules) {
  const auto kernel = [&]<int kGranules, int kMaxThreads>() {
    return reinterpret_cast<const void*>(
        &RowBackwardLong<X, kKind, kGranules, kScale, kPlain, kMaxThreads, Launch>);
  };
  constexpr LongGranules kFew = FewLongGranules(kKind, static_cast<int>(sizeof(StorageOf<X>)));
  constexpr LongGranules kMany = kManyLongGranules;
  if (granules == kFew.of_row) return kernel.template operator()<kFew.of_row, kFew.max_threads>();
  return granules == kMany.of_row ? kernel.template operator()<kMany.of_row, kMany.max_threads>()
                                  : nullptr;
}

template <typename X, RowKind kKind, LongScale kScale>
const void* SelectLong(BackwardLaunchKind launch, const RingKernel& kernel) {
  if (launch == BackwardLaunchKind::kSegments) {
    return SelectLongGranules<RingBackwardSegments, X, kKind, kScale, false>(kernel.granules);
  }
  if (kernel.plain) {
    return SelectLongGranules<RingBackwardParams, X, kKind, kScale, true>(kernel.granules);
  }
  return SelectLongGranules<RingBackwardParams, X, kKind, kScale, false>(kernel.granules);
}

template <typename X>
const void* SelectLongKernel(BackwardLaunchKind launch, RowKind kind, const RingKernel& kernel) {
  if (kind == RowKind::kRms) {
    return SelectLong<X, RowKind::kRms, LongScale::kRegisters>(launch, kernel);
  }
  // Sums of two gradients leave no registers for the weights of so many elements.
  constexpr LongScale kScale =
      sizeof(StorageOf<X>) == sizeof(float) ? LongScale::kRegisters : LongScale::kShared;
  return SelectLong<X, RowKind::kLayer, kScale>(launch, kernel);
}

}  // namespace norm_device
