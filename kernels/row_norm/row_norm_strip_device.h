// What host code and the strip kernels agree on: which threads share a row of 16-bit elements whose
// length is no multiple of 16 bytes, and how tiles of such rows go through shared memory. Standard
// library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_device.h"

namespace norm_device {

#ifdef __CUDACC__
#define NORM_STRIP_FUNCTION __host__ __device__
#else
#define NORM_STRIP_FUNCTION
#endif

/// `lanes` lanes of a warp share a row, or `warps` whole warps; each has a strip of `words` 32-bit
/// words of consecutive elements, and perhaps single elements after all strips.
struct StripShape {
  int lanes;
  int warps;
  int words;
  int forward_threads;   // of a block
  int forward_resident;  // such blocks on a multiprocessor

  NORM_STRIP_FUNCTION constexpr int RowThreads() const { return warps > 1 ? warps * 32 : lanes; }
  NORM_STRIP_FUNCTION constexpr int Elements() const { return 2 * words; }
  NORM_STRIP_FUNCTION constexpr int MaxHidden() const {
    return RowThreads() * Elements() + Elements() - 1;
  }
  NORM_STRIP_FUNCTION constexpr int GroupThreads() const { return warps * 32; }
};

inline constexpr StripShape kStripShapes[] = {
    {8, 1, 9, 128, 6},    // to 161 elements
    {8, 1, 15, 128, 6},   // to 269
    {16, 1, 17, 128, 5},  // to 577
    {32, 1, 13, 128, 5},  // to 857
    {32, 1, 17, 128, 5},  // to 1121
    {32, 2, 13, 128, 4},  // to 1689
    {32, 2, 17, 128, 4},  // to 2209
    {32, 4, 17, 640, 1},  // to 4385
};
inline constexpr int kStripShapeCount = 8;
inline constexpr int kFirstBackwardStripShape = 3;
inline constexpr int64_t kMinStripHidden = 33;
inline constexpr int64_t kMinBackwardStripHidden = 513;
inline constexpr int64_t kMaxStripHidden = kStripShapes[kStripShapeCount - 1].MaxHidden();

/// The first shape from `first` on that holds a row.
constexpr int StripShapeOf(int64_t hidden_size, int first) {
  int shape = first;
  while (kStripShapes[shape].MaxHidden() < hidden_size) ++shape;
  return shape;
}

/// Tiles have the same place in lines of this size in shared memory as in memory: copies are faster
/// so.
inline constexpr int kTileLineBytes = 128;
inline constexpr int kMaxStripStages = 8;

/// Of a tile's place in a stage.
NORM_STRIP_FUNCTION constexpr int TilePlaceBytes(int rows, int hidden_size) {
  return (rows * hidden_size * 2 + 2 * kTileLineBytes - 1) / kTileLineBytes * kTileLineBytes;
}

/// Rows of a tile of the forward kernel.
NORM_STRIP_FUNCTION constexpr int StripForwardTileRows(const StripShape& shape, int hidden_size,
                                                       bool has_residual) {
  constexpr int kTileBytes = 4 << 10;  // about, of all tensors
  if (shape.warps > 1) return 1;
  const int at_once = 32 / shape.lanes;
  const int bytes = hidden_size * 2 * (has_residual ? 2 : 1);
  const int steps = (kTileBytes + at_once * bytes / 2) / (at_once * bytes);
  const int rows = (steps < 1 ? 1 : steps) * at_once;
  return rows < 32 ? rows : 32;
}

/// Shared memory of scale and bias.
NORM_STRIP_FUNCTION constexpr int StripAffineBytes(const StripShape& shape, RowKind kind) {
  const int columns = shape.MaxHidden() + 1;
  return (columns * (kind == RowKind::kLayer ? 8 : 4) + kTileLineBytes - 1) / kTileLineBytes *
         kTileLineBytes;
}

/// Memory of the backward kernel: the f64 sums of a block, a group's besides its ring, and what
/// passes through a ring in the end.
struct StripBackwardBytes {
  int totals;  // where HasGlobalStripTotals, in global memory, if needed at all
  int group;
  int sums;

  NORM_STRIP_FUNCTION constexpr StripBackwardBytes(const StripShape& shape, RowKind kind)
      : totals(0), group(0), sums(0) {
    const int gradients = kind == RowKind::kLayer ? 2 : 1;
    const int extras = (shape.Elements() + shape.RowThreads() - 2) / shape.RowThreads();
    const int elements = (shape.Elements() + extras) * gradients;
    totals = RoundUp(shape.RowThreads() * elements * 8);
    group = shape.warps == 1 ? 0 : RoundUp(shape.warps * (16 + 24));
    sums = shape.GroupThreads() * elements * 4;
  }

 private:
  static NORM_STRIP_FUNCTION constexpr int RoundUp(int bytes) {
    return (bytes + kTileLineBytes - 1) / kTileLineBytes * kTileLineBytes;
  }
};

inline constexpr int kStripBackwardThreads = 256;  // of a block, at most

/// Whether a block's sums are in global memory: they would take the place of stages.
NORM_STRIP_FUNCTION constexpr bool HasGlobalStripTotals(const StripShape& shape) {
  return shape.warps > 2;
}

#undef NORM_STRIP_FUNCTION

/// Kernels as the runtime launches them, by index of shape. They take RowForwardParams or
/// RowForwardSegments, RingBackwardParams or RingBackwardSegments.
template <typename Activation>
const void* StripForwardKernel(RowLaunchKind launch, RowKind kind, int shape);
template <typename Activation>
const void* StripBackwardKernel(BackwardLaunchKind launch, RowKind kind, int shape);

}  // namespace norm_device
