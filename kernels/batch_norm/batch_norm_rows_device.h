// What host code and the channel-last BatchNorm kernels ([values, channels]) agree on: arguments by
// value and the kernels as pointers. Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

/// Warps of a training block. Each takes chunks of rows of its own.
inline constexpr int kRowsWarps = 16;
/// Consecutive channels of one thread.
inline constexpr int kRowsGranule = 4;
/// Channels of one warp at most.
inline constexpr int kRowsStripChannels = 32 * kRowsGranule;
inline constexpr int kRowsMaxStages = 16;
/// Channels that one block finishes at most.
inline constexpr int kRowsMaxGather = kRowsWarps * 32;

/// Granules that a thread takes from one chunk of one tensor.
constexpr int RowsUnroll(int tensors, int element_bytes) {
  return (element_bytes == 4 ? 4 : 8) / tensors;
}
/// Chunks that a warp keeps in registers from its first pass to its second.
constexpr int RowsRegisterChunks(int tensors, int element_bytes) {
  return tensors == 1 && element_bytes == 4 ? 2 : 1;
}
/// Of all tensors.
constexpr int RowsChunkBytes(int tensors, int element_bytes) {
  return tensors * RowsUnroll(tensors, element_bytes) * kRowsStripChannels * element_bytes;
}

/// Shared memory of a training block: barriers, an area for sums and totals, rings.
inline constexpr int kRowsBarrierBytes = kRowsWarps * kRowsMaxStages * 8;
inline constexpr int kRowsSumEntries = kRowsWarps / 2 * kRowsStripChannels;  // of 16 bytes
constexpr int RowsAreaBytes(int tensors) { return tensors * kRowsSumEntries * 16; }
constexpr int RowsRingOffset(int tensors) { return kRowsBarrierBytes + RowsAreaBytes(tensors); }

/// A driver's description of a tensor for bulk copies.
struct alignas(64) RowsTensorMap {
  unsigned char bytes[128];
};

/// 16 bytes that one access writes and reads whole. The last bit of `second` is set once written.
struct alignas(16) RowsSlot {
  uint64_t first;
  uint64_t second;
};

/// A set of blocks takes a slice of the channels of all rows. Its warps stand side by side over the
/// slice (strips) and take chunks of the rows in turn (groups, of all blocks of the set).
struct RowsGrid {
  int64_t rows;
  int64_t chunks;  // of `chunk_rows` rows
  int channels;
  int slice_channels;
  int strip_channels;  // a power of two
  int sets;
  int set_blocks;
  int strips;
  int groups;
  int chunk_rows;
  int stages;          // chunks that the ring of a warp holds
  int flight;          // chunks that a warp asks for ahead of the one it reads
  int wanted;          // chunks of a warp that L2 is asked to keep until they are read again
  int gather;          // channels that a block finishes, a power of two
  bool shared_totals;  // every block finishes some channels for all; otherwise all for itself
};

/// Slots of each array: one per block of a set and channel, one per channel.
struct RowsExchange {
  RowsSlot* partials[2];  // [set_blocks, channels]; the second for backward
  RowsSlot* totals[2];    // [channels]
};

struct RowsForwardParams {
  RowsTensorMap x_map;
  const void* x;
  void* y;
  const void* weight;
  const void* bias;
  const float* running_mean;
  const float* running_var;
  float* new_running_mean;
  float* new_running_var;
  float* mean;
  float* rstd;
  RowsGrid grid;
  RowsExchange exchange;
  double eps;
  double momentum;
  bool wide;  // x and y lie at multiples of a granule
  bool f32_weights;
};

struct RowsBackwardParams {
  RowsTensorMap dy_map;
  RowsTensorMap x_map;
  const void* dy;
  const void* x;
  void* dx;
  const void* weight;
  const float* given_rstd;  // null: recomputed
  void* dweight;
  void* dbias;
  RowsGrid grid;
  RowsExchange exchange;
  double eps;
  bool wide;  // dy, x and dx lie at multiples of a granule
  bool f32_weights;
};

/// Kernels as the runtime launches them, for F32, F16 and BF16. `bulk`: bulk copies can move the
/// tensors, and all lie at multiples of a granule.
template <typename X>
const void* RowsForwardKernel(bool bulk);
template <typename X>
const void* RowsBackwardKernel(bool bulk, bool recompute);

}  // namespace norm_device
