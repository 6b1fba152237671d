// Launches of the resident kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batch_norm/batch_norm_ring_plan.h"
#include "norm/kernels/workspace.h"
#include "primitives/element_types.h"

namespace norm::internal {

inline bool IsGranuleAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % norm_device::kRingGranuleBytes == 0;
}

/// select(tag) for the dtypes that the resident and the inference kernels are built for, else null.
template <typename Select>
const void* RingKernel(DType dtype, Select&& select) {
  switch (dtype) {
    case DType::kF32:
      return select(norm_device::F32{});
    case DType::kF16:
      return select(norm_device::F16{});
    case DType::kBF16:
      return select(norm_device::BF16{});
    case DType::kF64:
      break;
  }
  return nullptr;
}

/// Segments that a launch for `count` segments carries at most; more take several launches, one
/// after the other in the same scratch.
int64_t RingLaunchSegments(size_t count);

/// Training requests of the plan's shape and dtypes. `published`: plan.published_words of scratch
/// for each of RingLaunchSegments(segments.size()).
Status LaunchForwardRing(const RingPlan& plan, std::span<const BatchNormForwardArgs> segments,
                         uint64_t* published, StreamHandle stream);
/// As above; every segment has its mean and rstd.
Status LaunchBackwardRing(const RingPlan& plan, std::span<const BatchNormBackwardArgs> segments,
                          uint64_t* published, StreamHandle stream);

}  // namespace norm::internal
