#include <algorithm>
#include <initializer_list>

#include "row_norm/row_norm_backward_tuning.h"
#include "row_norm/row_norm_ring_shape.h"

namespace norm::internal {
namespace {

using norm_device::LongGranules;
using norm_device::RingShape;
using norm_device::RowKind;

constexpr int kMaxClusterBlocks = 16;
constexpr int64_t kGranuleBytes = 16;
constexpr int kWideRatio = 2;  // of f32 to 16 bits
/// Shorter rows are left to blocks that take several at a time.
constexpr int64_t kMinColumns = 8193;
/// What the kernel declares besides dynamic shared memory.
constexpr int64_t kStaticSharedBytes = 2 << 10;
/// Clusters that fit a device at once; see ResidentClusters of the forward rings.
int64_t ResidentClusters(DeviceTraits device, int blocks) {
  const int usable = blocks <= 2 ? device.sm_count : device.sm_count - device.sm_count / 11;
  return std::max(1, usable / blocks);
}

int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/// False where a thread would lack more than its last granule, or two rows do not fit the ring: the
/// one that leaves and the one that arrives.
bool UseLong(LongGranules granules, int row_granules, int blocks, RowKind kind, bool is_16_bit,
             int ring_tensors, DeviceTraits device, RowBackwardPlan& plan) {
  const RingShape shape({granules.of_row, 1, granules.max_threads}, row_granules, blocks);
  if (shape.threads > granules.max_threads ||
      shape.threads * (granules.of_row - 1) > row_granules / blocks) {
    return false;
  }
  const int warps = shape.warps * blocks;
  constexpr int kFourFloats = 4;
  const int64_t exchange_bytes =
      norm_device::LongExchangeBytes(kind, static_cast<int>(RoundUp(warps, kFourFloats)));
  constexpr int kCarefulTurns = 2;
  const int64_t careful_bytes = RoundUp(
      kCarefulTurns * norm_device::CarefulDoubles(warps) * static_cast<int64_t>(sizeof(double)),
      kGranuleBytes);
  const int64_t weights_bytes = is_16_bit && kind == RowKind::kLayer
                                    ? kWideRatio * granules.of_row * shape.threads * kGranuleBytes
                                    : 0;
  const int64_t tensor_bytes = shape.threads * kGranuleBytes;
  const int64_t budget =
      device.max_shared_bytes - kStaticSharedBytes - exchange_bytes - careful_bytes - weights_bytes;
  const int64_t row_bytes = granules.of_row * ring_tensors * tensor_bytes;
  const int64_t rows =
      std::min<int64_t>(budget / row_bytes, norm_device::kMaxLongSlots / granules.of_row);
  constexpr int kMinRows = 2;
  if (rows < kMinRows) return false;
  plan.method = norm_device::RowBackwardMethod::kLong;
  plan.threads = shape.LaunchThreads();
  plan.pipelined = true;
  plan.granules = granules.of_row;
  plan.cluster_blocks = blocks;
  plan.stages = static_cast<int>(rows);
  plan.tensor_bytes = tensor_bytes;
  plan.exchange_offset = rows * row_bytes;
  plan.careful_offset = plan.exchange_offset + exchange_bytes;
  plan.weights_offset = plan.careful_offset + careful_bytes;
  plan.shared_bytes = plan.weights_offset + weights_bytes;
  plan.max_row_blocks = ResidentClusters(device, blocks);
  plan.max_partial_stages = norm_device::kPlainSumRowsOfLong;
  return true;
}

}  // namespace

bool PlanLongBackward(RowKind kind, int64_t hidden_size, DType dtype, int ring_tensors,
                      DeviceTraits device, RowBackwardPlan& plan) {
  const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtype));
  const bool is_16_bit = DTypeSize(dtype) == 2;
  constexpr LongGranules kMany = norm_device::kManyLongGranules;
  if (dtype == DType::kF64 || !device.HasClusters() || row_bytes % kGranuleBytes != 0 ||
      hidden_size < kMinColumns ||
      row_bytes / kGranuleBytes > int64_t{kMaxClusterBlocks} * kMany.of_row * kMany.max_threads) {
    return false;
  }
  const int row_granules = static_cast<int>(row_bytes / kGranuleBytes);
  const LongGranules few = norm_device::FewLongGranules(kind, static_cast<int>(DTypeSize(dtype)));
  for (int blocks = 1; blocks <= kMaxClusterBlocks; blocks *= 2) {
    for (const LongGranules& granules : {few, kMany}) {
      if (UseLong(granules, row_granules, blocks, kind, is_16_bit, ring_tensors, device, plan)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace norm::internal
