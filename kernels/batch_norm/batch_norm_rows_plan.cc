#include "batch_norm/batch_norm_rows_plan.h"

#include <algorithm>

namespace norm::internal {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool IsRows(const BatchNormShape& shape, DType dtype) {
  const bool channel_last = shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1;
  return channel_last && dtype != DType::kF64 && shape.batch > 0 && shape.spatial > 0;
}

/// Division into slices of `slice_channels`. False where it does not suit the kernels.
bool DivideRows(int64_t rows, int64_t channels, int slice_channels, int tensors, int element_bytes,
                const DeviceTraits& device, norm_device::RowsGrid& grid) {
  constexpr int kMaxBoxRows = 256;
  constexpr int kRingAlignment = 128;
  grid.rows = rows;
  grid.channels = static_cast<int>(channels);
  grid.slice_channels = slice_channels;
  grid.items = static_cast<int>(CeilDiv(channels, slice_channels));
  grid.chunk_rows = norm_device::kRowsThreads / (slice_channels / norm_device::kRowsGranule) *
                    norm_device::RowsUnroll(tensors, element_bytes);
  grid.chunks = CeilDiv(rows, grid.chunk_rows);
  grid.sum_rows = norm_device::RowsSumRows(slice_channels);
  grid.coefficients_offset =
      norm_device::kRowsBarrierBytes + norm_device::RowsSumBytes(slice_channels);
  grid.ring_offset = static_cast<int>(
      CeilDiv(norm_device::RowsFixedBytes(slice_channels), kRingAlignment) * kRingAlignment);
  const int stage_bytes = tensors * norm_device::RowsChunkBytes(tensors, element_bytes);
  grid.stages = static_cast<int>(std::min<int64_t>(
      norm_device::kRowsMaxStages, (device.max_shared_bytes - grid.ring_offset) / stage_bytes));
  return grid.chunk_rows <= kMaxBoxRows;
}

std::optional<RowsPlan> PlanRows(const BatchNormShape& shape, DType dtype, int tensors,
                                 const DeviceTraits& device) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  constexpr int64_t kMaxChannels = int64_t{1} << 22;
  constexpr int kMinSliceBytes = 128;  // half of DRAM's bandwidth is lost below
  constexpr int kMinStages = 8;
  constexpr int kStagesInFlight = 4;
  const int64_t rows = shape.batch * shape.spatial;
  if (!IsRows(shape, dtype) || !device.HasClusters() || rows > kMaxRows ||
      shape.channels > kMaxChannels || shape.channels % norm_device::kRowsGranule != 0) {
    return std::nullopt;
  }
  const int element_bytes = static_cast<int>(DTypeSize(dtype));
  std::optional<RowsPlan> best;
  for (int slice = kMinSliceBytes / element_bytes; slice <= norm_device::kRowsMaxSliceChannels;
       slice *= 2) {
    RowsPlan plan;
    norm_device::RowsGrid& grid = plan.grid;
    if (!DivideRows(rows, shape.channels, slice, tensors, element_bytes, device, grid)) continue;
    if (grid.stages < kMinStages || grid.chunks < device.sm_count) continue;
    const int64_t part = CeilDiv(grid.chunks, device.sm_count);
    // Half of the ring holds an item that waits for its statistics, the other half the next one.
    const bool fits = part <= grid.stages / 2;
    if (best.has_value() && !fits &&
        best->grid.kept >= CeilDiv(best->grid.chunks, device.sm_count)) {
      break;
    }
    grid.head = 2;
    grid.flight = kStagesInFlight;
    grid.kept = static_cast<int>(fits ? part : grid.stages - 2);
    plan.launch.blocks_x = device.sm_count;
    plan.launch.threads_x = norm_device::kRowsBlockThreads;
    plan.launch.dynamic_shared_bytes =
        grid.ring_offset + static_cast<int64_t>(grid.stages) * tensors *
                               norm_device::RowsChunkBytes(tensors, element_bytes);
    plan.launch.cooperative = true;
    best = plan;
    if (slice >= shape.channels) break;
  }
  return best;
}

}  // namespace

std::optional<RowsPlan> PlanRowsForward(const BatchNormShape& shape, DType dtype,
                                        const DeviceTraits& device) {
  return PlanRows(shape, dtype, 1, device);
}

std::optional<RowsPlan> PlanRowsBackward(const BatchNormShape& shape, DType dtype,
                                         const DeviceTraits& device) {
  return PlanRows(shape, dtype, 2, device);
}

}  // namespace norm::internal
