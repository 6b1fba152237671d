#include "row_norm/row_norm_strip_tuning.h"

#include <algorithm>
#include <limits>

namespace norm::internal {
namespace {

using norm_device::kStripShapes;
using norm_device::RowKind;
using norm_device::StripBackwardBytes;
using norm_device::StripShape;
using norm_device::TilePlaceBytes;

/// Barriers and the exchange of groups.
constexpr int64_t kStaticBytes = 1 << 10;
/// Shared memory that the runtime keeps of each block.
constexpr int64_t kReservedBytes = 1 << 10;

bool IsStrips(int64_t hidden_size, DType dtype, int64_t min_hidden) {
  constexpr int64_t kWideElements = 8;
  return (dtype == DType::kF16 || dtype == DType::kBF16) && hidden_size % kWideElements != 0 &&
         hidden_size >= min_hidden && hidden_size <= norm_device::kMaxStripHidden;
}

const StripShape& ForwardShape(int64_t hidden_size) {
  return kStripShapes[norm_device::StripShapeOf(hidden_size, 0)];
}

/// A launch asks for more than kSharedBytesWithoutAsking only when the dynamic part alone is more:
/// a part that exceeds it together with the static one is made to.
int64_t AskedSharedBytes(int64_t bytes) {
  constexpr int64_t kSharedBytesWithoutAsking = 48 << 10;
  return bytes > kSharedBytesWithoutAsking - kStaticBytes
             ? std::max(bytes, kSharedBytesWithoutAsking + 16)
             : bytes;
}

/// Of LayerNorm; RMSNorm, which needs less for its weight, has the rest for its rings.
int64_t ForwardBytes(const StripShape& shape, int threads, int hidden_size, bool has_residual) {
  const int stages = shape.warps > 1 && !has_residual ? 3 : 2;
  const int tensors = has_residual ? 2 : 1;
  const int rows = norm_device::StripForwardTileRows(shape, hidden_size, has_residual);
  return AskedSharedBytes(norm_device::StripAffineBytes(shape, RowKind::kLayer) +
                          int64_t{threads} / shape.GroupThreads() * stages * tensors *
                              TilePlaceBytes(rows, hidden_size));
}

}  // namespace

bool PlanStripForward(int64_t hidden_size, DType dtype, DeviceTraits device, RowForwardPlan& plan) {
  if (!IsStrips(hidden_size, dtype, norm_device::kMinStripHidden)) return false;
  const StripShape& shape = ForwardShape(hidden_size);
  const auto size = static_cast<int>(hidden_size);
  int threads = shape.forward_threads;
  while (ForwardBytes(shape, threads, size, true) > device.max_shared_bytes - kStaticBytes) {
    threads -= shape.GroupThreads();
    if (threads <= 0) return false;
  }
  plan.method = norm_device::RowMethod::kStrips;
  plan.threads = threads;
  plan.rows_per_block = norm_device::StripForwardTileRows(shape, size, false);
  plan.shared_bytes = ForwardBytes(shape, threads, size, false);
  plan.residual_shared_bytes = ForwardBytes(shape, threads, size, true);
  constexpr int64_t kBarrierBytes = norm_device::kMaxStripStages * 8;
  const int64_t block_bytes =
      plan.shared_bytes + kReservedBytes + threads / shape.GroupThreads() * kBarrierBytes;
  const int64_t resident = std::min<int64_t>(
      shape.forward_resident, (device.max_shared_bytes + kReservedBytes) / block_bytes);
  plan.max_clusters = device.sm_count * std::max<int64_t>(1, resident);
  return true;
}

bool PlanStripBackward(RowKind kind, int64_t hidden_size, DType dtype, int ring_tensors,
                       DeviceTraits device, RowBackwardPlan& plan) {
  if (!IsStrips(hidden_size, dtype, norm_device::kMinBackwardStripHidden)) return false;
  const int index = norm_device::StripShapeOf(hidden_size, norm_device::kFirstBackwardStripShape);
  const StripShape& shape = kStripShapes[index];
  const StripBackwardBytes bytes(shape, kind);
  const auto size = static_cast<int>(hidden_size);
  // Of a group: one tile at work, one or (several warps) two on their way out, the rest on its way
  // in.
  const int64_t enough_stages = 3;
  constexpr int64_t kMaxStages = 6;
  const int64_t least_stages = shape.warps > 1 ? 3 : 2;
  const bool global_totals = norm_device::HasGlobalStripTotals(shape);
  const int64_t shared_totals = global_totals ? 0 : bytes.totals;
  const int64_t budget = device.max_shared_bytes - kStaticBytes - shared_totals;
  for (int threads = norm_device::kStripBackwardThreads; threads >= shape.GroupThreads();
       threads -= shape.GroupThreads()) {
    const int groups = threads / shape.GroupThreads();
    const int64_t of_group = budget / groups - bytes.group;
    for (int rows : {2, 1}) {
      if (rows > 1 && shape.warps > 1) continue;
      const int64_t stage_bytes = int64_t{ring_tensors} * TilePlaceBytes(rows, size);
      const int64_t stages = std::min(of_group / stage_bytes, kMaxStages);
      const bool is_last = threads == shape.GroupThreads() && rows == 1;
      if (stages < (is_last ? least_stages : enough_stages) || of_group < bytes.sums) continue;
      plan.method = norm_device::RowBackwardMethod::kStrips;
      plan.granules = index;
      plan.threads = threads;
      plan.tile_rows = rows;
      plan.rows_per_block = rows;
      plan.stages = static_cast<int>(stages);
      plan.tensor_bytes = TilePlaceBytes(rows, size);
      plan.columns = size;
      plan.shared_bytes = AskedSharedBytes(
          shared_totals +
          groups * (bytes.group + std::max<int64_t>(stages * stage_bytes, bytes.sums)));
      plan.max_row_blocks = device.sm_count;
      plan.strip_groups = groups;
      plan.strip_total_bytes = global_totals ? bytes.totals : 0;
      // One partial row of a block, whatever it adds up: the block's own sums are f64.
      plan.max_partial_stages = std::numeric_limits<int>::max();
      return true;
    }
  }
  return false;
}

}  // namespace norm::internal
