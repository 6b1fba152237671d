#include "batch_norm/batch_norm_tuning.h"

#include <algorithm>

namespace norm::internal {
namespace {

using norm_device::ChannelMajor;
using norm_device::ChunkOwner;
using norm_device::kBatchThreads;

constexpr int kWarpThreads = 32;
constexpr int64_t kReductionBlocksPerSm = 16;
constexpr int64_t kElementwiseBlocksPerSm = 32;
constexpr int64_t kGranulesPerThread = 8;  // of a segment of a plane

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int PowerOfTwoAtLeast(int64_t value, int limit) {
  int power = 1;
  while (power < value && power < limit) power *= 2;
  return power;
}

/// Cuts a channel's values into about `wanted` chunks of whole tiles.
void SetChunks(norm_device::ChunkLayout& layout, int64_t values, int64_t tile_values,
               int64_t wanted) {
  const int64_t tiles = CeilDiv(values, tile_values);
  layout.chunk_values = CeilDiv(tiles, std::clamp<int64_t>(wanted, 1, tiles)) * tile_values;
  layout.chunks = CeilDiv(values, layout.chunk_values);
}

void PlanPlanes(BatchNormPlan& plan, DType dtype, DeviceTraits device) {
  const norm_device::BatchShape& shape = plan.shape;
  const int tile_elements =
      dtype == DType::kF64 ? norm_device::kBatchTileElements / 2 : norm_device::kBatchTileElements;
  // Channels of a few warp tiles would leave most of a block idle.
  constexpr int64_t kWarpTiles = 2;
  const bool warp_owns = shape.values <= kWarpTiles * kWarpThreads * tile_elements;
  plan.owner = warp_owns ? ChunkOwner::kWarp : ChunkOwner::kBlock;
  const int owner_threads = warp_owns ? kWarpThreads : kBatchThreads;
  const int64_t wanted = device.sm_count * kReductionBlocksPerSm / shape.channels;
  SetChunks(plan.chunks, shape.values, static_cast<int64_t>(owner_threads) * tile_elements,
            warp_owns ? 1 : wanted);
  plan.chunks.channel_stride = plan.chunks.chunks;
  plan.chunks.chunk_stride = 1;
  plan.reduction.threads_x = warp_owns ? norm_device::kWarpChannelThreads : kBatchThreads;
  plan.reduction.blocks_x = std::min(
      kMaxBlocksX,
      CeilDiv(shape.channels * plan.chunks.chunks, plan.reduction.threads_x / owner_threads));

  plan.elementwise.threads_x =
      PowerOfTwoAtLeast(CeilDiv(shape.spatial, plan.granule), kBatchThreads);
  plan.elementwise.threads_y = kBatchThreads / plan.elementwise.threads_x;
  plan.segment_values = plan.elementwise.threads_x * plan.granule * kGranulesPerThread;
  const int64_t items = shape.batch * shape.channels * CeilDiv(shape.spatial, plan.segment_values);
  plan.elementwise.blocks_x = std::min(CeilDiv(items, plan.elementwise.threads_y),
                                       device.sm_count * kElementwiseBlocksPerSm);
}

void PlanRows(BatchNormPlan& plan, DeviceTraits device) {
  const norm_device::BatchShape& shape = plan.shape;
  LaunchConfig launch;
  launch.threads_x = PowerOfTwoAtLeast(CeilDiv(shape.channels, plan.granule), kWarpThreads);
  launch.threads_y = kBatchThreads / launch.threads_x;
  launch.blocks_x = CeilDiv(shape.channels, static_cast<int64_t>(launch.threads_x) * plan.granule);

  plan.reduction = launch;
  SetChunks(plan.chunks, shape.values,
            static_cast<int64_t>(launch.threads_y) * norm_device::kSpatialTileRows,
            std::min(kMaxBlocksY, device.sm_count * kReductionBlocksPerSm / launch.blocks_x));
  plan.chunks.channel_stride = 1;
  plan.chunks.chunk_stride = shape.channels;
  plan.reduction.blocks_y = plan.chunks.chunks;

  plan.elementwise = launch;
  const int64_t wanted =
      std::max<int64_t>(1, device.sm_count * kElementwiseBlocksPerSm / launch.blocks_x);
  plan.elementwise.blocks_y =
      std::min({CeilDiv(shape.values, launch.threads_y), wanted, kMaxBlocksY});
}

}  // namespace

BatchNormPlan PlanBatchNorm(const BatchNormShape& shape, DType dtype, DeviceTraits device) {
  BatchNormPlan plan;
  plan.shape.batch = shape.batch;
  plan.shape.channels = shape.channels;
  plan.shape.spatial = shape.spatial;
  plan.shape.values = shape.batch * shape.spatial;
  plan.channels.threads_x = kWarpThreads;
  plan.channels.threads_y = kBatchThreads / kWarpThreads;
  plan.channels.blocks_x = std::min(kMaxBlocksX, CeilDiv(shape.channels, plan.channels.threads_y));
  if (plan.shape.values == 0) return plan;

  const bool rows = shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1;
  plan.major = rows ? ChannelMajor::kRows : ChannelMajor::kPlanes;
  plan.granule = norm_device::MaxGranule(plan.major, static_cast<int>(DTypeSize(dtype)));
  while ((rows ? shape.channels : shape.spatial) % plan.granule != 0) plan.granule /= 2;
  if (rows) {
    PlanRows(plan, device);
  } else {
    PlanPlanes(plan, dtype, device);
  }
  return plan;
}

}  // namespace norm::internal
