#include "batch_norm/batch_norm_ring_cuda.h"

#include <algorithm>

#include "dispatch/launch.h"

namespace norm::internal {
namespace {

using norm_device::BackwardRingSegment;
using norm_device::ForwardRingSegment;
using norm_device::kRingSegments;
using norm_device::RingParams;

ForwardRingSegment ToSegment(const BatchNormForwardArgs& args) {
  ForwardRingSegment segment = {};
  segment.x = args.x;
  segment.y = args.y;
  segment.weight = args.weight;
  segment.bias = args.bias;
  segment.running_mean = static_cast<const float*>(args.running_mean);
  segment.running_var = static_cast<const float*>(args.running_var);
  segment.new_running_mean = static_cast<float*>(args.new_running_mean);
  segment.new_running_var = static_cast<float*>(args.new_running_var);
  segment.mean = static_cast<float*>(args.mean);
  segment.rstd = static_cast<float*>(args.rstd);
  segment.eps = args.eps;
  segment.momentum = args.momentum;
  return segment;
}

BackwardRingSegment ToSegment(const BatchNormBackwardArgs& args) {
  BackwardRingSegment segment = {};
  segment.x = args.x;
  segment.dy = args.dy;
  segment.dx = args.dx;
  segment.weight = args.weight;
  segment.mean = static_cast<const float*>(args.mean);
  segment.rstd = static_cast<const float*>(args.rstd);
  segment.dweight = args.dweight;
  segment.dbias = args.dbias;
  return segment;
}

bool IsAligned(const BatchNormForwardArgs& args) {
  return IsGranuleAligned(args.x) && IsGranuleAligned(args.y);
}
bool IsAligned(const BatchNormBackwardArgs& args) {
  return IsGranuleAligned(args.x) && IsGranuleAligned(args.dy) && IsGranuleAligned(args.dx);
}
template <typename Args>
bool AreAligned(std::span<const Args> segments) {
  return std::all_of(segments.begin(), segments.end(),
                     [](const Args& args) { return IsAligned(args); });
}

template <typename Segment, typename Args>
Status LaunchRing(const void* kernel, const RingPlan& plan, std::span<const Args> segments,
                  uint64_t* published, StreamHandle stream) {
  while (!segments.empty()) {
    const size_t count = std::min<size_t>(segments.size(), kRingSegments);
    RingParams<Segment> params = {};
    params.shape = plan.shape;
    params.segment_count = static_cast<int32_t>(count);
    params.weight_like_x = segments.front().weight_dtype == segments.front().dtype;
    params.published = published;
    for (size_t i = 0; i < count; ++i) params.segments[i] = ToSegment(segments[i]);
    // Which group takes an item does not show in its bits: none is launched without one.
    const int64_t items = int64_t{plan.shape.items} * static_cast<int64_t>(count);
    params.shape.groups = static_cast<int32_t>(std::min<int64_t>(plan.shape.groups, items));
    LaunchConfig launch = plan.launch;
    launch.blocks_x = int64_t{params.shape.groups} * params.shape.group_blocks;
    NORM_RETURN_IF_ERROR(Launch(kernel, launch, params, stream));
    segments = segments.subspan(count);
  }
  return Status();
}

}  // namespace

int64_t RingLaunchSegments(size_t count) {
  return static_cast<int64_t>(std::min<size_t>(count, kRingSegments));
}

Status LaunchForwardRing(const RingPlan& plan, std::span<const BatchNormForwardArgs> segments,
                         uint64_t* published, StreamHandle stream) {
  const bool aligned = AreAligned(segments);
  const void* kernel = RingKernel(segments.front().dtype, [&](auto x) {
    return plan.folded ? norm_device::FoldedRingForwardKernel<decltype(x)>(aligned)
                       : norm_device::PlaneRingForwardKernel<decltype(x)>(aligned);
  });
  return LaunchRing<ForwardRingSegment>(kernel, plan, segments, published, stream);
}

Status LaunchBackwardRing(const RingPlan& plan, std::span<const BatchNormBackwardArgs> segments,
                          uint64_t* published, StreamHandle stream) {
  const bool aligned = AreAligned(segments);
  const void* kernel = RingKernel(segments.front().dtype, [&](auto x) {
    return plan.folded ? norm_device::FoldedRingBackwardKernel<decltype(x)>(aligned)
                       : norm_device::PlaneRingBackwardKernel<decltype(x)>(aligned);
  });
  return LaunchRing<BackwardRingSegment>(kernel, plan, segments, published, stream);
}

}  // namespace norm::internal
