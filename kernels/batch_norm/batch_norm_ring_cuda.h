// Launches of the resident kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batch_norm/batch_norm_ring_plan.h"
#include "norm/kernels/workspace.h"

namespace norm::internal {

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
