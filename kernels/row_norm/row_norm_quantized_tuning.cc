#include "row_norm/row_norm_quantized_tuning.h"

#include <algorithm>

namespace norm::internal {
namespace {

using norm_device::QuantizedRowMethod;
using norm_device::RowKind;

constexpr int64_t kWarpThreads = 32;

int64_t CeilDiv(int64_t a, int64_t b) { return (a - 1) / b + 1; }

/// The fewest threads that hold a row; a block where a warp does not.
QuantizedRowMethod Method(RowKind kind, int64_t hidden_size, int element_bytes) {
  struct Lanes {
    QuantizedRowMethod method;
    int64_t lanes;
  };
  for (const Lanes& lanes :
       {Lanes{QuantizedRowMethod::kLanes8, 8}, Lanes{QuantizedRowMethod::kLanes16, 16},
        Lanes{QuantizedRowMethod::kWarp, kWarpThreads}}) {
    const int held = norm_device::QuantizedRowElements(lanes.method);
    if (hidden_size <= lanes.lanes * held) return lanes.method;
  }
  if (hidden_size <= norm_device::kMaxQuantizedBlockRow ||
      !norm_device::QuantizedMethodServes(QuantizedRowMethod::kLongBlock, kind, element_bytes)) {
    return QuantizedRowMethod::kBlock;
  }
  return hidden_size <= norm_device::kMaxQuantizedWideRow ? QuantizedRowMethod::kWideBlock
                                                          : QuantizedRowMethod::kLongBlock;
}

/// Blocks that fit a multiprocessor by their registers, which each of its four parts hands out for
/// warps.
int64_t ResidentBlocks(int64_t threads, int registers) {
  constexpr int64_t kParts = 4;
  constexpr int64_t kPartRegisters = 16 << 10;
  constexpr int64_t kMaxBlocks = 32;
  const int64_t warps = kParts * (kPartRegisters / (registers * kWarpThreads));
  return std::clamp(warps / (threads / kWarpThreads), int64_t{1}, kMaxBlocks);
}

}  // namespace

std::optional<QuantizedRowPlan> PlanQuantizedRow(RowKind kind, int64_t hidden_size, DType dtype,
                                                 DeviceTraits device) {
  constexpr int64_t kAccessBytes = 16;
  const int element_bytes = static_cast<int>(DTypeSize(dtype));
  if (element_bytes > 4 || hidden_size * element_bytes % kAccessBytes != 0) return std::nullopt;
  QuantizedRowPlan plan;
  plan.method = Method(kind, hidden_size, element_bytes);
  const int held = norm_device::QuantizedRowElements(plan.method);
  const int64_t lanes = CeilDiv(hidden_size, held);
  if (plan.method >= QuantizedRowMethod::kBlock) {
    const int64_t threads = CeilDiv(lanes, kWarpThreads) * kWarpThreads;
    if (threads > norm_device::kMaxQuantizedBlockThreads) return std::nullopt;
    plan.threads = static_cast<int>(threads);
  } else {
    plan.threads = norm_device::kQuantizedLaneThreads;
    plan.rows_per_block = plan.threads / (plan.method == QuantizedRowMethod::kLanes8    ? 8
                                          : plan.method == QuantizedRowMethod::kLanes16 ? 16
                                                                                        : 32);
  }
  if (device.HasClusters()) plan.shared_bytes = int64_t{plan.threads} * held * element_bytes;
  plan.resident_blocks =
      device.sm_count * ResidentBlocks(plan.threads, norm_device::QuantizedRowRegisters(
                                                         plan.method, kind, element_bytes));
  if (kind == RowKind::kRms) plan.rows_in_turn = 2;
  return plan;
}

LaunchConfig QuantizedRowLaunch(const QuantizedRowPlan& plan, int64_t rows) {
  LaunchConfig launch;
  const int64_t blocks = CeilDiv(rows, plan.rows_per_block);
  // Few rows are spread over all multiprocessors.
  const int64_t fewest = std::min(blocks, plan.resident_blocks);
  launch.blocks_x = plan.rows_in_turn == 0
                        ? fewest
                        : std::clamp(CeilDiv(blocks, plan.rows_in_turn), fewest, kMaxBlocksX);
  launch.threads_x = plan.threads;
  launch.dynamic_shared_bytes = plan.shared_bytes;
  return launch;
}

}  // namespace norm::internal
