// What host code and the row-norm forward kernels agree on: arguments by value and the kernels as
// pointers. Standard library only.
#pragma once

#include <cstdint>

#include "dispatch/segment_table.h"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

enum class RowKind : uint8_t { kRms, kLayer };

/// Who owns a row, and where it waits between the passes over it.
enum class RowMethod : uint8_t {
  kLanes4,     // 4 lanes of a warp, in registers
  kLanes8,     // 8 lanes
  kLanes16,    // 16 lanes
  kWarp,       // a warp
  kBlock,      // a block
  kBlockLong,  // a block, more per thread
  kCluster,    // a cluster of blocks
  kRing,       // a cluster, that passes through shared memory, kShortRingGranules
  kLongRing,   // a cluster, that passes through shared memory, kLongRingGranules
  kStrips,     // some lanes of a warp, or a few warps; it passes through shared memory
  kStreaming,  // a block, the row is read again in every pass
};

/// Whether the last element of an odd row that is no multiple of 16 bytes is one thread's extra, so
/// that sizes like 257 fill their threads.
constexpr bool HasExtraElement(RowMethod method) {
  return method != RowMethod::kLanes4 && method != RowMethod::kStreaming;
}

/// Consecutive elements of one access where a row is no multiple of 16 bytes, for elements of
/// `bytes` bytes: pairs of 16-bit elements, else single ones.
constexpr int NarrowRowAccess(RowMethod method, int bytes) {
  return bytes == 2 && HasExtraElement(method) ? 2 : 1;
}

/// Elements of a row that one thread holds, besides an extra one, for elements of `bytes` bytes.
constexpr int HeldRowElements(RowMethod method, int bytes, bool wide) {
  constexpr int kShortBytes = 64;
  constexpr int kLongBytes = 128;
  switch (method) {
    case RowMethod::kLanes4:
      return wide ? kShortBytes / bytes : 8;
    case RowMethod::kLanes8:
    case RowMethod::kLanes16:
    case RowMethod::kWarp:
    case RowMethod::kBlock:
      return wide || bytes == 2 ? kShortBytes / bytes : 16;
    case RowMethod::kBlockLong:
    case RowMethod::kCluster:
      return wide || bytes == 2 ? kLongBytes / bytes : bytes == 8 ? 16 : 32;
    case RowMethod::kRing:
    case RowMethod::kLongRing:
    case RowMethod::kStrips:
    case RowMethod::kStreaming:
      break;
  }
  return 0;
}

inline constexpr int kLaneRowThreads = 128;      // of a block whose warps own rows
inline constexpr int kMaxBlockRowThreads = 512;  // of a block that owns a row, or a part of it
inline constexpr int kStreamingThreads = 512;

/// Most threads of a block, and blocks that must fit a multiprocessor.
struct RowThreads {
  int of_block;
  int blocks;
};
/// For elements of `bytes` bytes. Rows of one warp have addresses of their own, which take
/// registers.
constexpr RowThreads HeldRowThreads(RowMethod method, int bytes) {
  if (method <= RowMethod::kWarp) return {kLaneRowThreads, 896 / kLaneRowThreads};
  if (method == RowMethod::kBlock) return bytes == 2 ? RowThreads{256, 4} : RowThreads{384, 3};
  return {kMaxBlockRowThreads, 1024 / kMaxBlockRowThreads};
}

/// What y holds.
enum class RowOutput : uint8_t {
  kInputType,
  kF8E4M3,        // y * inverse_y_scale
  kF8E4M3PerRow,  // y / row_scale, the row's largest magnitude / kLargestF8E4M3
  kInt8PerRow,    // y / row_scale, the row's largest magnitude / kLargestInt8
};

inline constexpr float kLargestF8E4M3 = 448.0F;
inline constexpr float kLargestInt8 = 127.0F;
/// Row scales below this count as zero.
inline constexpr float kSmallestRowScale = 0x1p-126F;

/// Absent optional tensors are null. Contiguous rows.
struct RowForwardParams {
  const void* x;
  const void* residual;
  const void* weight;
  const void* bias;
  void* y;
  void* residual_sum;
  void* mean;
  void* rstd;
  float* row_scale;
  int64_t rows;
  int64_t hidden_size;
  double eps;
  double inverse_size;  // 1 / hidden_size
  double weight_offset;
  float smallest_square;  // f32 mean squares below are taken again in f64
  float inverse_y_scale;
  RowOutput output;
  bool aligned;  // all tensors of [rows, hidden_size] and [hidden_size] start at a multiple of 16
                 // bytes
  bool round_normalized;  // x * rstd is rounded to the type of x before weight is applied
  bool weight_is_f32;     // strips: weight and bias are f32, else of the type of x
};

/// Requests of one launch: as many as the 4 KB hold that launch at no extra cost.
using RowForwardSegments = SegmentTable<RowForwardParams, 30>;
static_assert(sizeof(RowForwardSegments) <= kMaxKernelParameterBytes);

/// What a kernel takes: one request with y in the type of x (RowForwardParams), or any requests
/// (RowForwardSegments). The bits of the others are those of the kernel for any request.
/// kPlain: one of wide rows that is aligned, has no residual and rounds once; of rows in lanes with
/// weight, and bias if it is LayerNorm; of other rows kRms, and kLayer where BlockRowsOf has a kernel.
/// kFewRows: as kPlain, of either kind, of rows in blocks (SpreadRowBlocks is not 0).
/// kSpreadRows: as kFewRows, a row in SpreadRowBlocks.
enum class RowLaunchKind : uint8_t { kSingle, kPlain, kFewRows, kSpreadRows, kSegments };

/// Blocks that share a row of kSpreadRows: each reads all of it and writes one granule a thread. 0: the
/// method has no such kernel. For elements of `bytes` bytes.
constexpr int SpreadRowBlocks(RowMethod method, int bytes) {
  const bool of_block = method == RowMethod::kBlock || method == RowMethod::kBlockLong;
  return of_block && bytes < 8 ? HeldRowElements(method, bytes, true) * bytes / 16 : 0;
}

/// Whether kPlain launches of rows in lanes take a kernel of their own (row_norm_forward_lanes.cuh).
constexpr bool HasLaneRowsKernel(RowMethod method, int bytes) {
  return method <= RowMethod::kWarp && bytes < 8;
}
/// Rows that each of its threads has part in.
constexpr int LaneRowsTogether(int bytes) { return bytes == 4 ? 2 : 1; }
/// Threads of it that must fit a multiprocessor.
constexpr int LaneRowsResidentThreads(int bytes) { return bytes == 4 ? 896 : 1024; }

/// One request through rings.
struct RowRingParams {
  RowForwardParams request;
  RingShape shape;
  RingSlots slots;
  RowClaims* claims;             // null: clusters take rows by turns
  unsigned long long claim_tag;  // not 0, and unlike that of any launch that used the claims before
};

/// Kernels as the runtime launches them. `wide`: 16 bytes of consecutive elements per thread and
/// access (hidden_size is a multiple of that), else single elements. Pair: see
/// primitives/element_types.h.
template <typename Pair>
const void* RowForwardKernel(RowLaunchKind launch, RowKind kind, RowMethod method, bool wide);

/// Of kRing and kLongRing, y in the type of x: takes RowRingParams or RowForwardSegments. `plain`: a
/// single request that is aligned, has no residual and rounds once; the bits are those of the
/// kernel for any request. Null for f64.
template <typename Pair>
const void* RowRingKernel(RowLaunchKind launch, RowKind kind, RowMethod method, bool plain);

}  // namespace norm_device
