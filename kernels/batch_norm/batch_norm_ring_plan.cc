#include "batch_norm/batch_norm_ring_plan.h"

#include <algorithm>
#include <limits>

namespace norm::internal {
namespace {

using norm_device::kRingGranuleBytes;
using norm_device::RingTraits;

// At least what the kernels declare.
constexpr int64_t kPlaneSharedBytes = 2304;
constexpr int64_t kFoldedSharedBytes = 26880;
constexpr int64_t kMaxGroupBlocks = 256;  // whose sums one warp gathers
/// What a round of a group costs beside its bytes, as bytes of a slice: measured on an H200.
constexpr int64_t kRoundBytes = 11 << 10;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

struct Division {
  int64_t group_blocks = 0;
  int64_t slice = 0;
  int64_t steps = 0;
};

/// What a kernel's plan depends on besides the problem.
struct RingKernel {
  RingTraits planes;
  RingTraits folded;
  int64_t published;  // words of a channel
  int64_t sums;       // of a channel
  /// Of the ring ahead of what is stored, the share that a slice may take, in percent: the rest is
  /// the time that a group's sums have to arrive.
  int64_t slice_percent;

  constexpr int64_t MaxSteps(int64_t ahead, int64_t blocks) const {
    constexpr int64_t kAlonePercent = 80;  // sums of one block have no other to wait for
    return ahead * (blocks == 1 ? kAlonePercent : slice_percent) / 100;
  }
};

constexpr RingKernel kForward = {norm_device::kForwardRing, norm_device::kFoldedForwardRing,
                                 norm_device::kForwardRingSums, 2, 60};
constexpr RingKernel kBackward = {norm_device::kBackwardRing, norm_device::kFoldedBackwardRing,
                                  norm_device::kBackwardRingSums, 3, 75};

/// How many blocks share an item at most; whether as a cluster, whose sizes are powers of two.
struct GroupLimit {
  int64_t blocks;
  bool clusters;

  /// Groups of `blocks` that run at once. Larger clusters do not fill every part of a device.
  constexpr int64_t Groups(int64_t blocks_of_group, int64_t sm_count) const {
    constexpr int64_t kWholeParts = 16;
    if (!clusters || blocks_of_group <= 2 || sm_count < kWholeParts) {
      return sm_count / blocks_of_group;
    }
    return sm_count / kWholeParts * kWholeParts / blocks_of_group;
  }
};

/// The division of `items` of `values` parts, `step` of them a step and `part_bytes` each, that
/// takes a block the least time, among those that leave sums of a group the time to arrive.
/// `ahead(blocks)`: steps of a ring that are summed before they are stored.
template <typename Ahead>
Division BestDivision(const RingKernel& kernel, int64_t items, int64_t values, int64_t step,
                      int64_t part_bytes, Ahead&& ahead, GroupLimit limit, int64_t sm_count) {
  Division best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t blocks = 1; blocks <= std::min({sm_count, limit.blocks, values}); ++blocks) {
    if (limit.clusters && (blocks & (blocks - 1)) != 0) continue;
    const int64_t slice = CeilDiv(values, blocks);
    const int64_t steps = CeilDiv(slice, step);
    if (steps > kernel.MaxSteps(ahead(blocks), blocks)) continue;
    const int64_t rounds = CeilDiv(items, limit.Groups(blocks, sm_count));
    const int64_t cost = rounds * (slice * part_bytes + kRoundBytes);
    if (cost < best_cost) {
      best_cost = cost;
      best = {blocks, slice, steps};
    }
  }
  return best;
}

/// Channels of an item of the kernel for small planes: enough for whole granules and, where the
/// threads suffice, for runs of kWantedRunBytes. 0 where it cannot be used.
int64_t FoldedChannels(const RingTraits& traits, const BatchNormShape& shape,
                       int64_t element_bytes) {
  constexpr int64_t kWantedRunBytes = 512;
  const int64_t plane_bytes = shape.spatial * element_bytes;
  const int64_t max_run_bytes = int64_t{traits.threads} * kRingGranuleBytes;
  // A granule holds values of at most two channels, and every image starts at a whole granule.
  if (plane_bytes < kRingGranuleBytes || shape.channels * plane_bytes % kRingGranuleBytes != 0) {
    return 0;
  }
  int64_t whole = 1;
  while (whole * plane_bytes % kRingGranuleBytes != 0) whole *= 2;
  int64_t channels = whole;
  while (channels * plane_bytes < kWantedRunBytes &&
         channels + whole <= norm_device::kMaxFoldedChannels) {
    channels += whole;
  }
  channels = std::min(channels, CeilDiv(shape.channels, whole) * whole);
  return channels * plane_bytes <= max_run_bytes ? channels : 0;
}

void SetGroups(RingPlan& plan, const Division& division, GroupLimit limit, int64_t sm_count) {
  plan.shape.slice = static_cast<uint32_t>(division.slice);
  plan.shape.group_blocks = static_cast<int32_t>(division.group_blocks);
  plan.shape.groups = static_cast<int32_t>(limit.Groups(division.group_blocks, sm_count));
  plan.shape.steps = static_cast<int32_t>(division.steps);
}

void SetRing(RingPlan& plan, const RingTraits& traits, int64_t step_bytes, int64_t ring_steps,
             int64_t buffers) {
  // Sums may run so many items ahead of what is stored that no buffer is still in use.
  const int64_t most = traits.in_flight + buffers * plan.shape.steps - 1;
  plan.shape.ring_steps = static_cast<int32_t>(std::min(ring_steps, most));
  plan.launch.blocks_x = int64_t{plan.shape.group_blocks} * plan.shape.groups;
  plan.launch.threads_x = traits.threads + norm_device::kRingHelperThreads;
  // Above what a launch may have without asking, which static arrays count towards: the launch asks.
  constexpr int64_t kLeastBytes = (48 << 10) + kRingGranuleBytes;
  plan.launch.dynamic_shared_bytes = std::max(kLeastBytes, plan.shape.ring_steps * step_bytes);
}

/// Sums that a block of the kernel for small planes has room for, behind its ring.
int64_t ReceivedBytes(const RingKernel& kernel, int64_t blocks, int64_t channels) {
  return norm_device::kFoldedReceived * blocks * channels * kernel.sums *
         static_cast<int64_t>(sizeof(double));
}

std::optional<RingPlan> PlanRing(const RingKernel& kernel, const BatchNormShape& shape, DType dtype,
                                 const DeviceTraits& device) {
  constexpr int kFirstCapability = 80;
  if (device.compute_capability < kFirstCapability || dtype == DType::kF64 ||
      shape.layout != BatchNormLayout::kNchw || shape.spatial <= 1 || shape.batch == 0) {
    return std::nullopt;
  }
  const auto element_bytes = static_cast<int64_t>(DTypeSize(dtype));
  const int64_t plane_bytes = shape.spatial * element_bytes;
  constexpr int64_t kMaxGranules = int64_t{1} << 31;
  if (plane_bytes > kMaxGranules || shape.channels > kMaxGranules / plane_bytes ||
      shape.batch > kMaxGranules * kRingGranuleBytes / (plane_bytes * shape.channels)) {
    return std::nullopt;
  }

  RingPlan plan;
  norm_device::RingShape& ring = plan.shape;
  ring.channels = static_cast<uint32_t>(shape.channels);
  ring.spatial = static_cast<uint32_t>(shape.spatial);
  ring.image = static_cast<uint32_t>(shape.channels * plane_bytes / kRingGranuleBytes);
  ring.images = static_cast<uint32_t>(shape.batch);
  ring.values = static_cast<double>(shape.batch) * static_cast<double>(shape.spatial);
  ring.share = 1.0 / ring.values;

  constexpr int64_t kSmallPlaneBytes = 512;
  plan.folded = plane_bytes % kRingGranuleBytes != 0 || plane_bytes < kSmallPlaneBytes;
  if (plan.folded) {
    const RingTraits& traits = kernel.folded;
    const int64_t channels = FoldedChannels(traits, shape, element_bytes);
    if (channels == 0) return std::nullopt;
    ring.item_channels = static_cast<uint32_t>(channels);
    ring.items = static_cast<uint32_t>(CeilDiv(shape.channels, channels));
    ring.run = static_cast<uint32_t>(channels * plane_bytes / kRingGranuleBytes);
    const int64_t rows = traits.threads / ring.run;
    const int64_t image_bytes = int64_t{ring.run} * kRingGranuleBytes * traits.tensors;
    const int64_t step_bytes = rows * traits.unroll * image_bytes;
    ring.rows = static_cast<uint32_t>(rows);
    constexpr int64_t kMaxClusterBlocks = 16;
    const GroupLimit limit = {device.HasClusters() ? kMaxClusterBlocks : 1, true};
    const auto ring_steps = [&](int64_t blocks) {
      return (device.max_shared_bytes - kFoldedSharedBytes -
              ReceivedBytes(kernel, blocks, channels)) /
             step_bytes;
    };
    const Division division = BestDivision(
        kernel, ring.items, shape.batch, rows * traits.unroll, image_bytes,
        [&](int64_t blocks) { return ring_steps(blocks) - traits.in_flight; }, limit,
        device.sm_count);
    if (division.group_blocks == 0) return std::nullopt;
    SetGroups(plan, division, limit, device.sm_count);
    SetRing(plan, traits, step_bytes, ring_steps(division.group_blocks),
            norm_device::kFoldedRingBuffers);
    plan.launch.cluster_blocks = ring.group_blocks;
    plan.launch.dynamic_shared_bytes += ReceivedBytes(kernel, ring.group_blocks, channels);
  } else {
    const RingTraits& traits = kernel.planes;
    ring.item_channels = 1;
    ring.items = ring.channels;
    ring.run = static_cast<uint32_t>(plane_bytes / kRingGranuleBytes);
    const int64_t ring_steps = (device.max_shared_bytes - kPlaneSharedBytes) / traits.StepBytes();
    const GroupLimit limit = {kMaxGroupBlocks, false};
    const Division division = BestDivision(
        kernel, ring.items, shape.batch * ring.run, int64_t{traits.threads} * traits.unroll,
        kRingGranuleBytes * traits.tensors, [&](int64_t) { return ring_steps - traits.in_flight; },
        limit, device.sm_count);
    if (division.group_blocks == 0) return std::nullopt;
    SetGroups(plan, division, limit, device.sm_count);
    SetRing(plan, traits, traits.StepBytes(), ring_steps, norm_device::kRingBuffers - 1);
    plan.launch.cooperative = ring.group_blocks > 1;
    plan.published_words = int64_t{ring.items} * ring.group_blocks * kernel.published;
  }
  return plan;
}

}  // namespace

std::optional<RingPlan> PlanForwardRing(const BatchNormShape& shape, DType dtype,
                                        const DeviceTraits& device) {
  return PlanRing(kForward, shape, dtype, device);
}

std::optional<RingPlan> PlanBackwardRing(const BatchNormShape& shape, DType dtype,
                                         const DeviceTraits& device) {
  return PlanRing(kBackward, shape, dtype, device);
}

}  // namespace norm::internal
