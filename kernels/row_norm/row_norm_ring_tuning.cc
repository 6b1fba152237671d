#include "row_norm/row_norm_ring_tuning.h"

#include <algorithm>

#include "row_norm/row_norm_ring_shape.h"

namespace norm::internal {
namespace {

using norm_device::RingGranules;
using norm_device::RingShape;
using norm_device::RowMethod;

constexpr int kGranuleBytes = 16;
/// Shorter rows fit the registers of a block, of which several share a multiprocessor.
constexpr int64_t kMinRowBytes = (64 << 10) + 1;
/// A block with longer slices waits less often for the others of its cluster.
constexpr int64_t kMinLongRowBytes = 320 << 10;
/// What the kernel declares besides dynamic shared memory.
constexpr int64_t kStaticSharedBytes = 2048;

/// Clusters that fit a device at once. The multiprocessors of its parts, within which a cluster
/// stays, are no multiple of every cluster's size: an eleventh is left over. (H200, 132: 66 of 2, 30
/// of 4, 15 of 8, 7 of 16.)
int64_t ResidentClusters(DeviceTraits device, int blocks) {
  const int usable = blocks <= 2 ? device.sm_count : device.sm_count - device.sm_count / 11;
  return std::max(1, usable / blocks);
}

bool Fits(RingGranules granules, const RingShape& shape, int64_t shared_bytes) {
  const int fewest = shape.row_granules / shape.blocks;  // of a block
  return shape.threads <= granules.max_threads && shape.threads * (granules.of_row - 1) <= fewest &&
         shape.Slots(static_cast<int>(shared_bytes)) >= norm_device::MinRingSlots(granules);
}

/// The smallest cluster whose blocks hold the row.
bool UseRing(RowMethod method, RingGranules granules, int row_granules, DeviceTraits device,
             RowForwardPlan& plan) {
  const int64_t shared_bytes = device.max_shared_bytes - kStaticSharedBytes;
  for (int blocks = 2; blocks <= norm_device::kMaxRingBlocks; blocks *= 2) {
    const RingShape shape(granules, row_granules, blocks);
    if (!Fits(granules, shape, shared_bytes)) continue;
    plan = {};
    plan.method = method;
    plan.wide = true;
    plan.threads = shape.LaunchThreads();
    plan.cluster_blocks = blocks;
    plan.max_clusters = ResidentClusters(device, blocks);
    plan.shared_bytes =
        shape.part_bytes + shape.Slots(static_cast<int>(shared_bytes)) * shape.slot_bytes;
    return true;
  }
  return false;
}

}  // namespace

bool PlanRowRing(int64_t hidden_size, DType dtype, DeviceTraits device, RowForwardPlan& plan) {
  const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtype));
  constexpr int64_t kMaxRowGranules = int64_t{norm_device::kMaxRingBlocks} *
                                      norm_device::kLongRingGranules.max_threads *
                                      norm_device::kLongRingGranules.of_row;
  if (dtype == DType::kF64 || !device.HasClusters() || row_bytes < kMinRowBytes ||
      row_bytes % kGranuleBytes != 0 || row_bytes / kGranuleBytes > kMaxRowGranules) {
    return false;
  }
  const int row_granules = static_cast<int>(row_bytes / kGranuleBytes);
  return (row_bytes < kMinLongRowBytes &&
          UseRing(RowMethod::kRing, norm_device::kShortRingGranules, row_granules, device, plan)) ||
         UseRing(RowMethod::kLongRing, norm_device::kLongRingGranules, row_granules, device, plan);
}

RingGranules RowRingGranules(const RowForwardPlan& plan) {
  return plan.method == RowMethod::kLongRing ? norm_device::kLongRingGranules
                                             : norm_device::kShortRingGranules;
}

RingShape RowRingShape(const RowForwardPlan& plan, int64_t hidden_size, DType dtype) {
  const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtype));
  return RingShape(RowRingGranules(plan), static_cast<int>(row_bytes / kGranuleBytes),
                   plan.cluster_blocks);
}

bool RowRingClaims(const RowForwardPlan& plan, norm_device::RowKind kind, int64_t hidden_size,
                   DType dtype) {
  if (plan.method == RowMethod::kLongRing) return true;
  // By what was faster on an H200.
  constexpr int64_t kLeastBytes = 22 << 10;
  constexpr int64_t kLeastLayerBytes = 28 << 10;
  constexpr int kMostLayerBlocks = 4;
  const int64_t block_bytes =
      hidden_size * static_cast<int64_t>(DTypeSize(dtype)) / plan.cluster_blocks;
  if (kind == norm_device::RowKind::kRms) return block_bytes >= kLeastBytes;
  return block_bytes >= kLeastLayerBytes && plan.cluster_blocks <= kMostLayerBlocks;
}

}  // namespace norm::internal
