#include "batch_norm/batch_norm_ring_plan.h"

#include <algorithm>
#include <limits>

namespace norm::internal {
namespace {

using norm_device::kRingGranuleBytes;
using norm_device::RingTraits;

constexpr int64_t kStaticSharedBytes = 4096;  // at least what the kernels declare
constexpr int64_t kMaxGroupBlocks = 256;      // whose sums one warp gathers
/// What a round of a group costs beside its bytes, as bytes of a slice: measured on an H200.
constexpr int64_t kRoundBytes = 11 << 10;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

struct Division {
  int64_t group_blocks = 0;
  int64_t slice = 0;
  int64_t steps = 0;
};

/// The division of `items` of `values` granules that takes a block the least time, among those that
/// leave enough of the ring for the group's sums to arrive in.
Division BestDivision(const RingTraits& traits, int64_t items, int64_t values, int64_t max_steps,
                      int64_t sm_count) {
  const int64_t step = int64_t{traits.threads} * traits.unroll;
  Division best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t blocks = 1; blocks <= std::min(sm_count, kMaxGroupBlocks); ++blocks) {
    const int64_t slice = CeilDiv(values, blocks);
    const int64_t steps = CeilDiv(slice, step);
    if (steps > max_steps) continue;
    const int64_t rounds = CeilDiv(items, sm_count / blocks);
    const int64_t cost = rounds * (slice * traits.tensors * kRingGranuleBytes + kRoundBytes);
    if (cost < best_cost) {
      best_cost = cost;
      best = {blocks, slice, steps};
    }
  }
  return best;
}

std::optional<RingPlan> PlanPlanes(const RingTraits& traits, int64_t published,
                                   const BatchNormShape& shape, DType dtype,
                                   const DeviceTraits& device) {
  constexpr int kFirstCapability = 80;
  const bool planes = shape.layout == BatchNormLayout::kNchw && shape.spatial > 1;
  if (device.compute_capability < kFirstCapability || dtype == DType::kF64 || !planes ||
      shape.batch == 0) {
    return std::nullopt;
  }
  const int64_t plane_bytes = shape.spatial * static_cast<int64_t>(DTypeSize(dtype));
  if (plane_bytes % kRingGranuleBytes != 0) return std::nullopt;
  const int64_t run = plane_bytes / kRingGranuleBytes;
  const int64_t image = run * shape.channels;
  constexpr int64_t kMaxGranules = int64_t{1} << 31;
  if (image > kMaxGranules / shape.batch) return std::nullopt;

  const int64_t ring_steps =
      (device.max_shared_bytes - kStaticSharedBytes) / traits.StepBytes();
  const int64_t ahead = ring_steps - traits.in_flight;
  // The rest of the ring is the time that a group's sums have to arrive.
  const int64_t max_steps = traits.tensors == 1 ? ahead * 3 / 5 : ahead * 3 / 4;
  const Division division =
      BestDivision(traits, shape.channels, run * shape.batch, max_steps, device.sm_count);
  if (division.group_blocks == 0) return std::nullopt;

  RingPlan plan;
  norm_device::RingShape& ring = plan.shape;
  ring.items = static_cast<uint32_t>(shape.channels);
  ring.item_channels = 1;
  ring.channels = ring.items;
  ring.spatial = static_cast<uint32_t>(shape.spatial);
  ring.run = static_cast<uint32_t>(run);
  ring.image = static_cast<uint32_t>(image);
  ring.images = static_cast<uint32_t>(shape.batch);
  ring.slice = static_cast<uint32_t>(division.slice);
  ring.group_blocks = static_cast<int32_t>(division.group_blocks);
  ring.groups = static_cast<int32_t>(device.sm_count / division.group_blocks);
  ring.steps = static_cast<int32_t>(division.steps);
  // Sums run at most this many items ahead of what is stored, so that no buffer is still in use.
  constexpr int64_t kItemsAhead = norm_device::kRingBuffers - 2;
  ring.ring_steps = static_cast<int32_t>(
      std::min(ring_steps, traits.in_flight + kItemsAhead * division.steps));
  ring.values = static_cast<double>(shape.batch) * static_cast<double>(shape.spatial);
  plan.published_words = shape.channels * division.group_blocks * published;
  plan.launch.blocks_x = int64_t{ring.group_blocks} * ring.groups;
  plan.launch.threads_x = traits.threads + norm_device::kRingHelperThreads;
  plan.launch.dynamic_shared_bytes = int64_t{ring.ring_steps} * traits.StepBytes();
  plan.launch.cooperative = true;
  return plan;
}

}  // namespace

std::optional<RingPlan> PlanForwardRing(const BatchNormShape& shape, DType dtype,
                                        const DeviceTraits& device) {
  return PlanPlanes(norm_device::kForwardRing, norm_device::kForwardRingSums, shape, dtype, device);
}

std::optional<RingPlan> PlanBackwardRing(const BatchNormShape& shape, DType dtype,
                                         const DeviceTraits& device) {
  return PlanPlanes(norm_device::kBackwardRing, norm_device::kBackwardRingSums, shape, dtype,
                    device);
}

}  // namespace norm::internal
