// What host code and the channel-last BatchNorm kernels ([values, channels]) agree on: arguments by
// value and the kernels as pointers. Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

/// Threads of a training block: some sum, as many write the output; warps of their own fill the
/// ring, spread statistics to the writing threads, and two gather the sums of all blocks.
inline constexpr int kRowsThreads = 256;
inline constexpr int kRowsBlockThreads = 2 * kRowsThreads + 4 * 32;
/// Consecutive channels of one thread.
inline constexpr int kRowsGranule = 4;
inline constexpr int kRowsMaxStages = 64;
inline constexpr int kRowsMaxSliceChannels = 256;

/// Granules that a thread takes from one chunk of one tensor.
constexpr int RowsUnroll(int tensors, int element_bytes) {
  return (element_bytes == 4 ? 4 : 8) / tensors;
}
/// Of one tensor.
constexpr int RowsChunkBytes(int tensors, int element_bytes) {
  return RowsUnroll(tensors, element_bytes) * kRowsThreads * kRowsGranule * element_bytes;
}

/// Shared memory of a training block: barriers, sums of warps, coefficients, ring.
inline constexpr int kRowsBarrierBytes = (2 * kRowsMaxStages + 8) * 8;
inline constexpr int kRowsCoefficients = 6;
inline constexpr int kRowsCoefficientBuffers = 2;
constexpr int RowsSumRows(int slice_channels) {
  const int columns = slice_channels / kRowsGranule;
  return columns < 32 ? kRowsThreads / 32 : kRowsThreads / columns;
}
constexpr int RowsSumBytes(int slice_channels) {
  return RowsSumRows(slice_channels) * slice_channels * 16;
}
constexpr int RowsCoefficientBytes(int slice_channels) {
  return kRowsCoefficientBuffers * kRowsCoefficients * slice_channels * 4;
}
constexpr int RowsFixedBytes(int slice_channels) {
  return kRowsBarrierBytes + RowsSumBytes(slice_channels) + RowsCoefficientBytes(slice_channels);
}

/// A driver's description of a tensor for bulk copies.
struct alignas(64) RowsTensorMap {
  unsigned char bytes[128];
};

/// 16 bytes that one access writes and reads whole. The last bit of `second` is set once written.
struct alignas(16) RowsSlot {
  uint64_t first;
  uint64_t second;
};

/// An item is a slice of channels, of all rows. Every block takes a run of chunks of the rows of
/// every item.
struct RowsGrid {
  int64_t rows;
  int64_t chunks;  // of `chunk_rows` rows
  int channels;
  int slice_channels;  // a power of two
  int items;
  int chunk_rows;
  int stages;    // chunks that the ring in shared memory holds
  int head;      // chunks that are asked for before the blocks meet for the first time
  int flight;    // chunks under way at most
  int kept;      // last chunks of a block's part that stay in the ring until they are written
  int sum_rows;  // RowsSumRows(slice_channels)
  int coefficients_offset;  // into shared memory
  int ring_offset;
};

/// Slots of each array: one per channel and block, one per channel.
struct RowsExchange {
  RowsSlot* partials[2];  // [channels, blocks]; the second for backward
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
