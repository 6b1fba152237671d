#include "batch_norm/batch_norm_rows_plan.h"

#include <algorithm>

namespace norm::internal {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool IsRows(const BatchNormShape& shape, DType dtype) {
  const bool channel_last = shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1;
  return channel_last && dtype != DType::kF64 && shape.batch > 0 && shape.spatial > 0;
}

/// Channels of a set of blocks. Rows of a strip that are shorter than 256 bytes cost DRAM bandwidth,
/// 16-bit ones of a tensor that L2 holds excepted; sets of fewer blocks than kMinSetBlocks would
/// leave too many of them idle.
int SliceChannels(int64_t rows, int64_t channels, int tensors, int element_bytes,
                  const DeviceTraits& device) {
  constexpr int kNarrowStripBytes = 128;
  constexpr int kMinSetBlocks = 8;
  constexpr int kMaxSlice = norm_device::kRowsWarps * norm_device::kRowsStripChannels;
  const bool narrow =
      tensors == 1 && element_bytes == 2 && rows * channels * element_bytes <= device.l2_bytes;
  const int strip_bytes = narrow ? kNarrowStripBytes : 2 * kNarrowStripBytes;
  int slice = kNarrowStripBytes / element_bytes;
  while (slice < channels && slice * element_bytes < strip_bytes) slice *= 2;
  const auto suits = [&] {
    const int64_t sets = CeilDiv(channels, slice);
    return sets <= std::max(1, device.sm_count / kMinSetBlocks) &&
           (sets == 1 || sets * slice <= channels + channels / 8);
  };
  while (slice < kMaxSlice && slice < channels && !suits()) slice *= 2;
  return slice;
}

std::optional<RowsPlan> PlanRows(const BatchNormShape& shape, DType dtype, int tensors,
                                 const DeviceTraits& device) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  constexpr int64_t kMaxChannels = int64_t{1} << 22;
  constexpr int kWantedStages = 9;
  constexpr int kMaxSlotsOfOwn = 36;  // of a channel, that every block reads by itself
  const int64_t rows = shape.batch * shape.spatial;
  if (!IsRows(shape, dtype) || !device.HasClusters() || rows > kMaxRows ||
      shape.channels > kMaxChannels || shape.channels % norm_device::kRowsGranule != 0) {
    return std::nullopt;
  }
  const int element_bytes = static_cast<int>(DTypeSize(dtype));
  RowsPlan plan;
  norm_device::RowsGrid& grid = plan.grid;
  grid.rows = rows;
  grid.channels = static_cast<int>(shape.channels);
  grid.slice_channels = SliceChannels(rows, shape.channels, tensors, element_bytes, device);
  grid.strip_channels = std::min(grid.slice_channels, norm_device::kRowsStripChannels);
  grid.strips = grid.slice_channels / grid.strip_channels;
  grid.groups = norm_device::kRowsWarps / grid.strips;
  const int64_t sets = CeilDiv(shape.channels, grid.slice_channels);
  if (sets > device.sm_count) return std::nullopt;
  grid.sets = static_cast<int>(sets);
  grid.set_blocks = device.sm_count / grid.sets;
  const int step_rows = 32 / (grid.strip_channels / norm_device::kRowsGranule);
  grid.chunk_rows = norm_device::RowsUnroll(tensors, element_bytes) * step_rows;
  grid.chunks = CeilDiv(rows, grid.chunk_rows);
  // Half of the warps have work.
  if (2 * grid.chunks < int64_t{grid.set_blocks} * grid.groups) return std::nullopt;
  grid.shared_totals = tensors * grid.set_blocks > kMaxSlotsOfOwn ||
                       grid.slice_channels > norm_device::kRowsStripChannels;
  grid.gather = 1;
  while (grid.gather * (grid.shared_totals ? grid.set_blocks : 1) < grid.slice_channels) {
    grid.gather *= 2;
  }
  if (grid.gather > norm_device::kRowsMaxGather) return std::nullopt;
  const int chunk_bytes =
      norm_device::kRowsWarps * norm_device::RowsChunkBytes(tensors, element_bytes);
  const int64_t ring_offset = norm_device::RowsRingOffset(tensors);
  grid.stages = static_cast<int>(std::min<int64_t>(
      norm_device::kRowsMaxStages, (device.max_shared_bytes - ring_offset) / chunk_bytes));
  if (grid.stages < 2) return std::nullopt;
  // More chunks under way than bandwidth asks for delay what blocks tell each other; in long passes
  // that does not count.
  const int64_t chunks_of_warp = grid.chunks / (int64_t{grid.set_blocks} * grid.groups);
  if (tensors == 1) {
    grid.flight = chunks_of_warp <= 8 ? 2 : chunks_of_warp < 16 ? 3 : 4;
  } else {
    grid.flight = chunks_of_warp <= 12 ? 2 : chunks_of_warp < 32 ? 3 : 5;
  }
  grid.wanted = kWantedStages;
  plan.launch.blocks_x = int64_t{grid.sets} * grid.set_blocks;
  plan.launch.threads_x = norm_device::kRowsWarps * 32;
  plan.launch.dynamic_shared_bytes = ring_offset + int64_t{grid.stages} * chunk_bytes;
  plan.launch.cooperative = true;
  return plan;
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
