#include "row_norm/row_norm_tuning.h"

#include <algorithm>

#include "row_norm/row_norm_block_device.h"
#include "row_norm/row_norm_ring_tuning.h"
#include "row_norm/row_norm_strip_tuning.h"

namespace norm::internal {
namespace {

using norm_device::RowMethod;
using norm_device::SpreadRowBlocks;

constexpr int kWarpThreads = 32;
constexpr int kMaxClusterBlocks = 8;  // what every device with clusters can schedule
// Launches of more take much longer than what overlapping the one before saves.
constexpr int64_t kMostOverlappingBlocks = 2048;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Lanes of a warp that own a row together.
int Lanes(RowMethod method) {
  switch (method) {
    case RowMethod::kLanes4:
      return 4;
    case RowMethod::kLanes8:
      return 8;
    case RowMethod::kLanes16:
      return 16;
    default:
      return kWarpThreads;
  }
}

class Planner {
 public:
  Planner(int64_t hidden_size, DType dtype, DeviceTraits device)
      : hidden_size_(hidden_size), element_bytes_(static_cast<int>(DTypeSize(dtype))) {
    plan_.wide = hidden_size * element_bytes_ % kAccessBytes == 0;
    plan_.overlaps_previous = device.HasClusters();
  }

  /// Rows within warps, if one fits.
  bool UseLanes(RowMethod method) {
    if (Spread(method) > int64_t{Lanes(method)} * Elements(method)) return false;
    plan_.method = method;
    plan_.threads = norm_device::kLaneRowThreads;
    plan_.rows_per_block = plan_.threads / Lanes(method);
    return true;
  }

  /// A row in a block, if it fits.
  bool UseBlock(RowMethod method) {
    const int max_threads = norm_device::HeldRowThreads(method, element_bytes_).of_block;
    const int64_t threads =
        CeilDiv(Spread(method), int64_t{Elements(method)} * kWarpThreads) * kWarpThreads;
    if (threads > max_threads) return false;
    plan_.method = method;
    plan_.threads = static_cast<int>(threads);
    return true;
  }

  /// A row in a cluster, if it fits: the smallest one, its warps spread evenly.
  bool UseCluster() {
    const int64_t warps =
        CeilDiv(Spread(RowMethod::kCluster), int64_t{Elements(RowMethod::kCluster)} * kWarpThreads);
    constexpr int kMaxBlockWarps = norm_device::kMaxBlockRowThreads / kWarpThreads;
    int blocks = 2;
    while (blocks <= kMaxClusterBlocks && CeilDiv(warps, blocks) > kMaxBlockWarps) blocks *= 2;
    if (blocks > kMaxClusterBlocks) return false;
    plan_.method = RowMethod::kCluster;
    plan_.threads = static_cast<int>(CeilDiv(warps, blocks)) * kWarpThreads;
    plan_.cluster_blocks = blocks;
    return true;
  }

  void UseStreaming() {
    plan_.method = RowMethod::kStreaming;
    plan_.threads = norm_device::kStreamingThreads;
  }

  const RowForwardPlan& plan() const { return plan_; }

 private:
  static constexpr int kAccessBytes = 16;

  int Elements(RowMethod method) const {
    return norm_device::HeldRowElements(method, element_bytes_, plan_.wide);
  }

  /// Elements that are spread over the threads: all but an extra one.
  int64_t Spread(RowMethod method) const {
    const bool extra = !plan_.wide && norm_device::HasExtraElement(method);
    return extra ? hidden_size_ - hidden_size_ % 2 : hidden_size_;
  }

  int64_t hidden_size_;
  int element_bytes_;
  RowForwardPlan plan_;
};

}  // namespace

RowForwardPlan PlanRowForward(int64_t hidden_size, DType dtype, DeviceTraits device,
                              bool quantizes) {
  RowForwardPlan ring;
  if (!quantizes && PlanRowRing(hidden_size, dtype, device, ring)) return ring;
  RowForwardPlan strips;
  if (!quantizes && PlanStripForward(hidden_size, dtype, device, strips)) return strips;
  Planner planner(hidden_size, dtype, device);
  const bool held = planner.UseLanes(RowMethod::kLanes4) || planner.UseLanes(RowMethod::kLanes8) ||
                    planner.UseLanes(RowMethod::kLanes16) || planner.UseLanes(RowMethod::kWarp) ||
                    planner.UseBlock(RowMethod::kBlock) ||
                    planner.UseBlock(RowMethod::kBlockLong) ||
                    (device.HasClusters() && planner.UseCluster());
  if (!held) planner.UseStreaming();
  return planner.plan();
}

LaunchConfig RowForwardLaunch(const RowForwardPlan& plan, int64_t rows) {
  LaunchConfig launch;
  const int64_t most =
      plan.max_clusters > 0 ? plan.max_clusters : kMaxBlocksX / plan.cluster_blocks;
  launch.blocks_x = std::min(CeilDiv(rows, plan.rows_per_block), most) * plan.cluster_blocks;
  launch.dynamic_shared_bytes = plan.shared_bytes;
  launch.threads_x = plan.threads;
  launch.cluster_blocks = plan.cluster_blocks;
  launch.overlaps_previous = plan.overlaps_previous && launch.blocks_x <= kMostOverlappingBlocks;
  return launch;
}

int PlainRowsTogether(const RowForwardPlan& plan, bool rms, DType dtype, DType weight_dtype) {
  const int bytes = static_cast<int>(DTypeSize(dtype));
  if (norm_device::HasLaneRowsKernel(plan.method, bytes)) {
    return norm_device::LaneRowsTogether(bytes);
  }
  if (rms) return 1;
  const int weight_bytes = static_cast<int>(DTypeSize(weight_dtype));
  return norm_device::BlockRowsOf(plan.method, bytes, weight_bytes, plan.threads).rows;
}

LaunchConfig PlainRowsLaunch(const RowForwardPlan& plan, int64_t rows, int together) {
  return RowForwardLaunch(plan, CeilDiv(rows, together));
}

int FewRowsBlocks(const RowForwardPlan& plan, int64_t rows, bool in_place, DType dtype,
                  DeviceTraits device) {
  const int blocks = SpreadRowBlocks(plan.method, static_cast<int>(DTypeSize(dtype)));
  if (blocks == 0 || !plan.wide || rows > device.sm_count) return 0;
  return !in_place && rows * blocks <= device.sm_count ? blocks : 1;
}

LaunchConfig FewRowsLaunch(const RowForwardPlan& plan, int64_t rows, int blocks) {
  LaunchConfig launch = RowForwardLaunch(plan, rows);
  launch.blocks_x *= blocks;
  return launch;
}

}  // namespace norm::internal
