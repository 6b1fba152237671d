#include "row_norm/row_norm_backward_tuning.h"

#include <algorithm>
#include <initializer_list>

#include "row_norm/row_norm_strip_tuning.h"

namespace norm::internal {
namespace {

using norm_device::kPlainSumRows;
using norm_device::kRingThreadsPerSm;
using norm_device::kTileThreads;
using norm_device::RowBackwardMethod;
using norm_device::RowKind;

constexpr int kWarpThreads = 32;
constexpr int kThreadsPerSm = 2048;
constexpr int kMaxClusterBlocks = 16;
constexpr int64_t kPieceBytes = 16;
/// Shared memory that a block takes besides its dynamic part: what the runtime keeps of it and
/// mbarriers.
constexpr int64_t kReservedBytes = 1 << 10;
constexpr int64_t kTileStaticBytes = 1 << 10;
constexpr int64_t kGroupStaticBytes = 5 << 10;
constexpr int64_t kBlockStaticBytes = 256;
/// Plain sums of plain sums: each level rounds like a sum of so many terms.
constexpr int64_t kMaxPartialRows = int64_t{kPlainSumRows} * kPlainSumRows;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

/// Dynamic shared memory of each of `resident` blocks.
int64_t SharedBudget(DeviceTraits device, int resident, int64_t static_bytes) {
  return (device.max_shared_bytes + kReservedBytes) / resident - kReservedBytes - static_bytes;
}

/// Multiprocessors that clusters can use at once: a cluster stays in one group of 16 to 18 of them,
/// and some groups are smaller. Of an H200's 132: 132, 120, 120, 112. A second round would take as
/// long as the first.
int64_t ClusterMultiprocessors(DeviceTraits device, int cluster_blocks) {
  if (cluster_blocks <= 2) return device.sm_count;
  return cluster_blocks <= 8 ? int64_t{device.sm_count} * 10 / 11
                             : int64_t{device.sm_count} * 17 / 20;
}

/// A launch asks for more than kSharedBytesWithoutAsking only when the dynamic part alone is more:
/// a part that exceeds it together with the static one is made to.
int64_t AskedSharedBytes(int64_t bytes) {
  constexpr int64_t kSharedBytesWithoutAsking = 48 << 10;
  constexpr int64_t kMostStaticBytes = 1 << 10;
  return bytes > kSharedBytesWithoutAsking - kMostStaticBytes
             ? std::max(bytes, kSharedBytesWithoutAsking + kPieceBytes)
             : bytes;
}

int WideElements(DType dtype) { return 16 / static_cast<int>(DTypeSize(dtype)); }

/// A request's dtype, width and device.
struct Row {
  RowKind kind;
  int64_t hidden_size;
  DType dtype;
  int ring_tensors;
  DeviceTraits device;
  bool wide;

  int element_bytes() const { return static_cast<int>(DTypeSize(dtype)); }
  int granule() const { return wide ? WideElements(dtype) : 1; }
  int64_t granules() const { return CeilDiv(hidden_size, granule()); }
  int gradients() const { return kind == RowKind::kLayer ? 2 : 1; }
  /// Of consecutive elements in the ring, wherever they begin: alignment must not change the plan.
  int64_t ChunkBytes(int64_t elements) const {
    return RoundUp(elements * element_bytes(), kPieceBytes) + kPieceBytes;
  }
};

/// Lanes and granules of the warp kernel that just hold a row.
struct TileShape {
  int granules;
  int lanes;
};
constexpr TileShape kWideTiles[] = {{1, 4}, {2, 4}, {2, 8}, {2, 16}, {2, 32}};
constexpr TileShape kNarrowTiles[] = {{4, 4}, {4, 8}, {8, 8}, {8, 16}, {8, 32}, {9, 32}, {16, 32}};
constexpr int64_t kMaxTileBytes = 2 << 10;  // of a row

/// Whether blocks of one a multiprocessor can share the columns of all partial rows among them.
bool FinalizesInPlace(const RowBackwardPlan& plan) {
  return plan.wide && plan.threads >= norm_device::kGridFinalizeThreads &&
         plan.shared_bytes >= int64_t{plan.threads} * norm_device::kGridFinalizeDoubles *
                                  static_cast<int64_t>(sizeof(double));
}

bool PlanTiles(const Row& row, RowBackwardPlan& plan) {
  constexpr int64_t kStageBytes = 2 << 10;  // of one tensor, about
  constexpr int kMaxStages = 3;
  if (row.hidden_size * row.element_bytes() > kMaxTileBytes) return false;
  const auto find = [&](auto& shapes) {
    for (const TileShape& shape : shapes) {
      if (shape.granules * shape.lanes >= row.granules()) {
        plan.granules = shape.granules;
        plan.lanes = shape.lanes;
        return true;
      }
    }
    return false;
  };
  if (!(row.wide ? find(kWideTiles) : find(kNarrowTiles))) return false;
  plan.method = RowBackwardMethod::kTiles;
  plan.threads = kTileThreads;
  const int warps = kTileThreads / kWarpThreads;
  const int rows_at_once = 2 * (kWarpThreads / plan.lanes);
  const int64_t row_bytes = row.hidden_size * row.element_bytes();
  plan.tile_rows = static_cast<int>(
      std::min<int64_t>(RoundUp(CeilDiv(kStageBytes, row_bytes), rows_at_once), kWarpThreads));
  plan.columns = static_cast<int>(row.hidden_size);
  plan.tensor_bytes = row.ChunkBytes(plan.tile_rows * row.hidden_size);
  const int64_t totals_bytes = int64_t{warps} * plan.granules * row.granule() *
                               norm_device::TileTotalsStride(row.granule()) *
                               static_cast<int64_t>(sizeof(float)) * row.gradients();
  const int64_t stage_bytes = warps * row.ring_tensors * plan.tensor_bytes;
  const int64_t budget = SharedBudget(row.device, 1, kTileStaticBytes);
  const int64_t stages = (budget - totals_bytes) / stage_bytes;
  if (stages < 1) return false;
  plan.stages = static_cast<int>(std::min<int64_t>(stages, kMaxStages));
  plan.column_totals_offset = plan.stages * stage_bytes;
  plan.shared_bytes = AskedSharedBytes(plan.column_totals_offset + totals_bytes);
  plan.rows_per_block = warps * plan.tile_rows;
  plan.max_row_blocks = row.device.sm_count;
  plan.max_partial_stages =
      std::max<int64_t>(1, kMaxPartialRows / (plan.tile_rows / (kWarpThreads / plan.lanes)));
  plan.finalizes_in_place = FinalizesInPlace(plan);
  return true;
}

bool PlanGroups(const Row& row, RowBackwardPlan& plan) {
  constexpr int64_t kRingBytes = 128 << 10;  // more in flight is slower
  constexpr int kMinStages = 2;
  constexpr int kMaxStages = 3;
  if (!row.wide) return false;
  // The granules of a thread that leave the fewest of the warps that fit without work.
  int64_t most_busy = 0;
  for (int granules : {2, 4}) {
    if (row.element_bytes() == 4 && granules != 4) continue;
    const int fitting = norm_device::GroupKernelThreads(granules * row.granule()) / kWarpThreads;
    const int64_t warps = CeilDiv(row.granules(), int64_t{granules} * kWarpThreads);
    if (warps > fitting) continue;
    const int64_t groups = std::min<int64_t>(fitting / warps, norm_device::kMaxGroups);
    const int64_t busy = row.granules() * groups * norm_device::kMaxGroupWarps / granules / fitting;
    if (busy <= most_busy) continue;
    most_busy = busy;
    plan.granules = granules;
    plan.group_warps = static_cast<int>(warps);
    // 4-byte elements need half as many warps to keep the memory busy.
    plan.groups = static_cast<int>(
        row.element_bytes() == 4 ? std::max<int64_t>(1, fitting / 2 / warps) : groups);
  }
  if (most_busy == 0) return false;
  plan.method = RowBackwardMethod::kGroups;
  plan.columns = static_cast<int>(row.hidden_size);
  const int64_t covered = int64_t{plan.group_warps} * kWarpThreads * plan.granules * row.granule();
  plan.tensor_bytes = std::max(row.ChunkBytes(row.hidden_size), covered * row.element_bytes());
  const int64_t row_bytes = row.ring_tensors * plan.tensor_bytes;
  const int64_t totals_bytes = covered * static_cast<int64_t>(sizeof(float)) * row.gradients();
  const int64_t budget = SharedBudget(row.device, 1, kGroupStaticBytes);
  for (bool totals : {true, false}) {
    for (int groups = plan.groups; groups >= 1; --groups) {
      const int64_t fitting_stages = (budget - (totals ? totals_bytes : 0)) / (groups * row_bytes);
      if (fitting_stages < kMinStages) continue;
      plan.stages = static_cast<int>(
          std::min(fitting_stages,
                   std::clamp<int64_t>(kRingBytes / (groups * row_bytes), kMinStages, kMaxStages)));
      const int64_t ring_bytes = plan.stages * groups * row_bytes;
      plan.column_totals_offset = totals ? ring_bytes : -1;
      plan.shared_bytes = AskedSharedBytes(ring_bytes + (totals ? totals_bytes : 0));
      plan.groups = groups;
      plan.threads = groups * plan.group_warps * kWarpThreads;
      plan.rows_per_block = groups;
      plan.max_row_blocks = row.device.sm_count;
      plan.max_partial_stages = totals ? kMaxPartialRows / groups : 2 * kPlainSumRows;
      plan.direct_rows = totals ? groups : 0;
      plan.finalizes_in_place = totals && FinalizesInPlace(plan);
      return true;
    }
  }
  return false;
}

/// One block a row, or `cluster_blocks` of them; `resident` blocks per multiprocessor. Relaxed:
/// only if their warps need no barrier and are enough to keep the memory busy.
bool PlanBlocks(const Row& row, int cluster_blocks, int resident, bool relaxed,
                RowBackwardPlan& plan) {
  constexpr int64_t kBusyThreadsPerSm = 256;
  constexpr int kMaxStages = 6;
  constexpr int kHeldStages = 2;  // least, where rows wait in registers
  constexpr int kPipelinedStages = 3;
  const bool cluster = cluster_blocks > 1;
  plan.method = cluster ? RowBackwardMethod::kCluster : RowBackwardMethod::kBlock;
  plan.granules =
      norm_device::BlockGranules(row.kind, row.element_bytes(), row.wide, row.hidden_size);
  plan.cluster_blocks = cluster_blocks;
  const int64_t granules = CeilDiv(row.granules(), cluster_blocks);
  const int64_t threads = RoundUp(CeilDiv(granules, plan.granules), kWarpThreads);
  if (threads * resident > kRingThreadsPerSm) return false;
  if (relaxed && threads * resident < kBusyThreadsPerSm) return false;
  plan.threads = static_cast<int>(threads);
  plan.columns = static_cast<int>(granules * row.granule());
  plan.tensor_bytes = row.ChunkBytes(plan.columns);
  const int64_t stage_bytes = row.ring_tensors * plan.tensor_bytes;
  const int warps = plan.threads / kWarpThreads;
  const int64_t exchange_bytes = norm_device::ExchangeFloats(row.kind, warps * cluster_blocks) *
                                 static_cast<int64_t>(sizeof(float));
  const int64_t careful_bytes =
      norm_device::CarefulDoubles(warps) * static_cast<int64_t>(sizeof(double));
  const int64_t totals_bytes = threads * plan.granules * row.granule() *
                               static_cast<int64_t>(sizeof(float)) * row.gradients();
  const int64_t budget = SharedBudget(row.device, resident, kBlockStaticBytes);
  const int64_t stages = (budget - exchange_bytes - careful_bytes - totals_bytes) / stage_bytes;
  plan.pipelined = row.device.HasClusters() && (cluster || stages >= norm_device::kRelaxedStages);
  if (stages < (relaxed && row.device.HasClusters() ? norm_device::kRelaxedStages
                : cluster                           ? kPipelinedStages
                                                    : kHeldStages)) {
    return false;
  }
  plan.stages = static_cast<int>(std::min<int64_t>(stages, kMaxStages));
  plan.column_totals_offset = plan.stages * stage_bytes;
  plan.exchange_offset = plan.column_totals_offset + totals_bytes;
  plan.careful_offset = RoundUp(plan.exchange_offset + exchange_bytes, sizeof(double));
  plan.shared_bytes = AskedSharedBytes(plan.careful_offset + careful_bytes);
  plan.max_row_blocks = std::max<int64_t>(
      1, ClusterMultiprocessors(row.device, cluster_blocks) * resident / cluster_blocks);
  plan.max_partial_stages = kMaxPartialRows;
  return true;
}

}  // namespace

RowBackwardPlan PlanRowBackward(RowKind kind, int64_t hidden_size, DType dtype, int ring_tensors,
                                DeviceTraits device) {
  const Row row = {kind,         hidden_size, dtype,
                   ring_tensors, device,      hidden_size % WideElements(dtype) == 0};
  RowBackwardPlan plan;
  if (dtype != DType::kF64) {
    plan.wide = row.wide;
    if (PlanStripBackward(kind, hidden_size, dtype, ring_tensors, device, plan)) return plan;
    if (PlanTiles(row, plan)) return plan;
    plan = {};
    plan.wide = row.wide;
    if (PlanLongBackward(kind, hidden_size, dtype, ring_tensors, device, plan)) return plan;
    if (PlanGroups(row, plan)) return plan;
    const int most_blocks = row.wide ? 0 : device.HasClusters() ? kMaxClusterBlocks : 1;
    for (int cluster_blocks = 1; cluster_blocks <= most_blocks; cluster_blocks *= 2) {
      for (bool relaxed : {true, false}) {
        for (int resident : {8, 6, 4, 3, 2, 1}) {
          plan = {};
          plan.wide = row.wide;
          if (PlanBlocks(row, cluster_blocks, resident, relaxed, plan)) return plan;
        }
      }
    }
  }
  plan = {};
  plan.wide = row.wide;
  constexpr int kElements = norm_device::kCarefulElements;
  if (dtype == DType::kF64 && hidden_size <= kWarpThreads * kElements) {
    plan.method = RowBackwardMethod::kCarefulWarp;
    plan.threads = norm_device::kCarefulWarpThreads;
    plan.rows_per_block = plan.threads / kWarpThreads;
  } else if (dtype == DType::kF64 && hidden_size <= norm_device::kCarefulMaxThreads * kElements) {
    plan.method = RowBackwardMethod::kCarefulBlock;
    plan.threads = 2 * kWarpThreads;
    while (plan.threads * kElements < hidden_size) plan.threads *= 2;
  } else {
    plan.method = RowBackwardMethod::kStreaming;
    plan.threads = norm_device::kCarefulMaxThreads;
  }
  constexpr int kStreamingWaves = 4;
  const int threads_per_sm = plan.method == RowBackwardMethod::kStreaming
                                 ? kThreadsPerSm * kStreamingWaves
                                 : kRingThreadsPerSm;
  plan.max_row_blocks = int64_t{device.sm_count} * std::max(1, threads_per_sm / plan.threads);
  return plan;
}

RowBackwardLaunch LaunchRowBackward(const RowBackwardPlan& plan, int64_t rows, bool sums_columns) {
  RowBackwardLaunch launch;
  launch.direct = sums_columns && rows <= plan.direct_rows;
  // Groups and warps are many: rows are spread over blocks first.
  int rows_of_block = plan.rows_per_block;
  if (plan.method == RowBackwardMethod::kTiles) rows_of_block = plan.tile_rows;
  if (plan.method == RowBackwardMethod::kLong) rows_of_block = 1;
  if (plan.method == RowBackwardMethod::kGroups && !launch.direct) rows_of_block = 1;
  launch.row_blocks = std::min(plan.max_row_blocks, CeilDiv(rows, rows_of_block));
  launch.config.blocks_x = launch.row_blocks * plan.cluster_blocks;
  launch.config.threads_x = plan.threads;
  launch.config.cluster_blocks = plan.cluster_blocks;
  launch.config.needs_cluster = plan.method == RowBackwardMethod::kLong;
  launch.config.dynamic_shared_bytes = plan.shared_bytes;
  launch.config.cooperative = sums_columns && !launch.direct && plan.finalizes_in_place &&
                              rows > norm_device::kExactMeanRows &&
                              launch.row_blocks == plan.max_row_blocks;
  if (plan.UsesRing()) {
    const int64_t stages = CeilDiv(rows, launch.row_blocks * plan.rows_per_block);
    launch.block_partials = CeilDiv(stages, plan.max_partial_stages);
    launch.partial_stages = CeilDiv(stages, launch.block_partials);
    // Groups that take no more rows keep their sums in registers.
    if (plan.method == RowBackwardMethod::kStrips &&
        CeilDiv(rows, launch.row_blocks * plan.strip_groups) > kPlainSumRows) {
      launch.strip_total_bytes = launch.row_blocks * plan.strip_total_bytes;
    }
  }
  return launch;
}

ColumnPlan PlanColumns(int64_t rows, int64_t hidden_size, DType dtype, DeviceTraits device) {
  constexpr int64_t kMinRowsPerStrip = 64;
  constexpr int64_t kBlocksPerSm = 8;
  const int granule = hidden_size % WideElements(dtype) == 0 ? WideElements(dtype) : 1;
  ColumnPlan plan;
  plan.launch.threads_x = norm_device::kColumnThreadsX;
  plan.launch.threads_y = norm_device::kColumnThreadsY;
  plan.launch.blocks_x = CeilDiv(hidden_size, norm_device::kColumnThreadsX * granule);
  const int64_t wanted_strips =
      std::max<int64_t>(1, device.sm_count * kBlocksPerSm / plan.launch.blocks_x);
  const int64_t strips =
      std::clamp<int64_t>(CeilDiv(rows, kMinRowsPerStrip), 1, std::min(wanted_strips, kMaxBlocksY));
  plan.rows_per_strip = CeilDiv(rows, strips);
  plan.launch.blocks_y = CeilDiv(rows, plan.rows_per_strip);
  return plan;
}

LaunchConfig LaunchRowStatistics(int64_t rows, int64_t hidden_size, DeviceTraits device) {
  constexpr int kElementsPerThread = 8;
  constexpr int kWaves = 4;
  LaunchConfig launch;
  launch.threads_x = kWarpThreads;
  while (launch.threads_x < norm_device::kStatisticsMaxThreads &&
         launch.threads_x * kElementsPerThread < hidden_size) {
    launch.threads_x *= 2;
  }
  constexpr int kBlocksPerSm = 32;
  launch.blocks_x =
      std::min<int64_t>(rows, int64_t{device.sm_count} * kWaves *
                                  std::min(kBlocksPerSm, kThreadsPerSm / launch.threads_x));
  return launch;
}

}  // namespace norm::internal
