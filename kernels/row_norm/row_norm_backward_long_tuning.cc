#include <algorithm>
#include <initializer_list>

#include "row_norm/row_norm_backward_tuning.h"
#include "row_norm/row_norm_ring_shape.h"

namespace norm::internal {
namespace {

using norm_device::LongTile;
using norm_device::RingShape;
using norm_device::RowKind;

constexpr int64_t kGranuleBytes = 16;
constexpr int kWideRatio = 2;  // of f32 to 16 bits
/// Longer rows fit no cluster.
constexpr int64_t kMaxRowGranules = 1 << 16;
/// Shorter rows are left to blocks that take several at a time.
constexpr int64_t kMinColumns = 8193;
/// What the kernel declares besides dynamic shared memory.
constexpr int64_t kStaticSharedBytes = 2 << 10;

/// A tile, and the blocks of a cluster it is used with.
struct Choice {
  int tile;  // of norm_device::kLongTiles
  int least_blocks;
  int most_blocks;
};
/// In order of preference.
constexpr Choice k16BitChoices[] = {{0, 1, 1}, {1, 2, 8}, {2, 1, 16}};
constexpr Choice kF32Choices[] = {{0, 1, 2}, {1, 4, 4}, {2, 2, 16}};

/// Clusters that fit a device at once; see ResidentClusters of the forward rings.
int64_t ResidentClusters(DeviceTraits device, int blocks) {
  const int usable = blocks <= 2 ? device.sm_count : device.sm_count - device.sm_count / 11;
  return std::max(1, usable / blocks);
}

int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/// False where a thread would lack more than its last granule, or too few units of rows fit the ring.
bool UseLong(int tile_index, int row_granules, int blocks, RowKind kind, int element_bytes,
             int ring_tensors, DeviceTraits device, RowBackwardPlan& plan) {
  const LongTile tile = norm_device::kLongTiles[tile_index];
  if (!norm_device::LongTileServes(tile_index, kind, element_bytes)) return false;
  const RingShape shape({tile.granules, 1, tile.max_threads}, row_granules, blocks);
  if (shape.threads > tile.max_threads ||
      shape.threads * (tile.granules - 1) > row_granules / blocks) {
    return false;
  }
  const int warps = shape.warps * blocks;
  constexpr int kFourFloats = 4;
  const int64_t exchange_bytes = norm_device::LongExchangeBytes(
      kind, tile.rows, static_cast<int>(RoundUp(warps, kFourFloats)));
  constexpr int kCarefulTurns = 2;
  const int64_t careful_bytes = RoundUp(
      kCarefulTurns * norm_device::CarefulDoubles(warps) * static_cast<int64_t>(sizeof(double)),
      kGranuleBytes);
  const int64_t weights_bytes =
      norm_device::LongWeightsAreShared(kind, tile.granules, element_bytes)
          ? int64_t{kWideRatio} * tile.granules * shape.threads * kGranuleBytes
          : 0;
  const int64_t tensor_bytes = shape.threads * kGranuleBytes;
  const int64_t budget =
      device.max_shared_bytes - kStaticSharedBytes - exchange_bytes - careful_bytes - weights_bytes;
  const int chunks = tile.granules * tile.rows;
  const int64_t unit_bytes = chunks * ring_tensors * tensor_bytes;
  const int64_t units = std::min<int64_t>(budget / unit_bytes, norm_device::kMaxLongSlots / chunks);
  if (units < norm_device::LeastLongUnits(tile)) return false;
  plan.method = norm_device::RowBackwardMethod::kLong;
  plan.threads = shape.LaunchThreads();
  plan.pipelined = true;
  plan.granules = tile_index;
  plan.rows_per_block = tile.rows;
  plan.cluster_blocks = blocks;
  plan.stages = static_cast<int>(units);
  plan.tensor_bytes = tensor_bytes;
  plan.exchange_offset = units * unit_bytes;
  plan.careful_offset = plan.exchange_offset + exchange_bytes;
  plan.weights_offset = plan.careful_offset + careful_bytes;
  plan.shared_bytes = plan.weights_offset + weights_bytes;
  plan.max_row_blocks = ResidentClusters(device, blocks);
  plan.max_partial_stages = norm_device::LongPlainSums(tile.rows);
  return true;
}

}  // namespace

bool PlanLongBackward(RowKind kind, int64_t hidden_size, DType dtype, int ring_tensors,
                      DeviceTraits device, RowBackwardPlan& plan) {
  const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtype));
  if (dtype == DType::kF64 || !device.HasClusters() || row_bytes % kGranuleBytes != 0 ||
      hidden_size < kMinColumns || row_bytes / kGranuleBytes > kMaxRowGranules) {
    return false;
  }
  const int row_granules = static_cast<int>(row_bytes / kGranuleBytes);
  const auto element_bytes = static_cast<int>(DTypeSize(dtype));
  for (const Choice& choice : element_bytes == 2 ? k16BitChoices : kF32Choices) {
    for (int blocks = choice.least_blocks; blocks <= choice.most_blocks; blocks *= 2) {
      if (UseLong(choice.tile, row_granules, blocks, kind, element_bytes, ring_tensors, device,
                  plan)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace norm::internal
