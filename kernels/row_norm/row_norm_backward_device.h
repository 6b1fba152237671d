// What host code and the row-norm backward kernels agree on: arguments by value and the kernels as
// pointers. Standard library only.
#pragma once

#include <cstdint>
#include <iterator>

#include "dispatch/segment_table.h"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_finalize_device.h"

namespace norm_device {

/// What a kernel takes: one request, or many of equal hidden size and dtypes. kFewRows: LayerNorm, one
/// of no more than kExactMeanRows rows; a kernel of its own, to keep the code for them from the others.
enum class BackwardLaunchKind : uint8_t { kSingle, kFewRows, kSegments };

/// Who owns a row of x and dy, and where it waits between the passes over it.
enum class RowBackwardMethod : uint8_t {
  kTiles,         // ring kernels: lanes of a warp, in the warp's part of shared memory
  kGroups,        // warps of a block that has several such groups, in the group's part of it
  kBlock,         // a block, in shared memory
  kLong,          // sm_90: a block or a cluster, with a warp of each block that feeds the others
  kCluster,       // the blocks of a cluster, in their shared memory
  kStrips,        // lanes of a warp, or a few warps, in shared memory: row_norm_strip_device.h
  kCarefulWarp,   // f64: a warp, kCarefulElements per thread in registers
  kCarefulBlock,  // f64: a block
  kStreaming,     // a block, read again in every pass; the column kernel sums dweight and dbias
};

inline constexpr int kCarefulElements = 8;
inline constexpr int kCarefulWarpThreads = 128;  // of a block whose warps own a row each
inline constexpr int kCarefulMaxThreads = 512;

/// Statistics that row kernels hand to the column kernel, [rows] each, in the compute type.
struct RowStatistics {
  void* mean;             // kLayer
  void* mean_correction;  // kLayer: the mean is mean + mean_correction
  void* rstd;
};

/// f64, and rows too long for the ring kernels.
struct CarefulBackwardParams {
  const void* dy;
  const void* x;
  const void* weight;
  const void* mean;
  const void* rstd;  // null: statistics are recomputed
  const void* dresidual_sum;
  void* dx;  // null: statistics only
  double*
      dweight_partials;  // [blocks, hidden_size]; null: not wanted, or left to the column kernel
  double* dbias_partials;
  RowStatistics statistics;  // null members: not wanted
  int64_t rows;
  int64_t hidden_size;
  double eps;
  double weight_offset;
  bool aligned;
};

/// Ring kernels (f32, f16, bf16, given statistics): tensors of rows come through shared memory.
struct RingBackwardParams {
  const void* tensors[3];  // x, dy, dresidual_sum
  int64_t tensor_size;     // bytes of each
  const void* weight;      // of the type of x, or f32
  const float* mean;
  const float* rstd;
  void* dx;
  float* dweight_partials;  // [chunks * row blocks, hidden_size]; null: not wanted
  float* dbias_partials;
  double* strip_totals;  // kStrips: sums of blocks, where one takes many rows; else null
  void* dweight;         // the sums themselves, by this launch; null where another one finalizes
  void* dbias;
  int64_t rows;
  int64_t hidden_size;
  int64_t row_blocks;  // blocks (clusters) that rows are dealt out to in turn
  float weight_offset;
  bool weight_is_f32;
  bool has_edges;            // some tensor begins or ends inside 16 bytes
  int stages;                // long rows: units of rows in the ring
  int ring_tensors;          // 3 with dresidual_sum, else 2
  int tensor_bytes;          // of one chunk of one tensor in a stage
  int column_totals_offset;  // in shared memory, in bytes; group kernel: negative without totals
  int exchange_offset;       // block kernel
  int careful_offset;
  int weights_offset;  // long rows: of weights that wait in shared memory
  int cluster_blocks;  // that share a row
  int columns;         // of one block
  int group_warps;     // that share a row: group kernel
  int groups;          // of a block: group kernel
  int64_t group_rows;  // rows of every group; the first rows_left groups have one more
  int64_t rows_left;
  float column_share;  // 1 / hidden_size
  int lanes;           // of a warp that share a row: warp kernel
  int tile_rows;       // of a warp's stage: warp kernel
  int partial_stages;  // stages of a block (of a warp, of a group) that one partial row adds up
  int block_partials;  // partial rows of a block
};

/// LayerNorm of up to so many rows has dweight from means without rounding: in so few, x of a column
/// may be closer to every mean than 2^-4 of it, where the mean's rounding is over 1e-6 of x - mean.
inline constexpr int64_t kExactMeanRows = 16;
/// Of BackwardLaunchKind::kFewRows.
struct RingBackwardFewRows : RingBackwardParams {};

/// Requests of one launch, each with the blocks it would have alone.
using RingBackwardSegments = SegmentTable<RingBackwardParams, 64>;
static_assert(sizeof(RingBackwardSegments) <= kMaxKernelParameterBytes);

/// Of a long row: g * d, g, and x as a pair.
constexpr int LongRowSums(RowKind kind) { return kind == RowKind::kLayer ? 4 : 1; }

/// Where warps that share a row leave their sums: f32 by turns, f64 for rows that need it.
inline constexpr int kExchangeTurns = 4;
constexpr int ExchangeFloats(RowKind kind, int all_warps) {
  return kExchangeTurns * (kind == RowKind::kLayer ? 4 : 1) * all_warps;
}
/// The same of long rows, in bytes: f32 of so many rows at once. `all_warps`: a multiple of 4.
constexpr int LongExchangeBytes(RowKind kind, int rows, int all_warps) {
  return kExchangeTurns * LongRowSums(kind) * rows * static_cast<int>(sizeof(float)) * all_warps;
}
constexpr int CarefulDoubles(int block_warps) { return 3 * block_warps; }

/// Rows whose terms are added up in a plain f32 register: each addition rounds by at most 2^-24 of
/// the sum.
inline constexpr int kPlainSumRows = 32;
/// As kPlainSumRows, of the long-row kernel, which adds up the terms of so many rows first. Rounding
/// by at most half the last place of sums of equal terms adds up to 0.94e-6 of their total.
constexpr int LongPlainSums(int rows) { return rows == 1 ? 40 : 36; }

/// The column kernel: dweight and dbias partials of strips of rows, for rows too long for
/// registers.
struct ColumnParams {
  const void* dy;
  const void* x;
  RowStatistics statistics;
  double* dweight_partials;  // [strips, hidden_size]
  double* dbias_partials;
  int64_t rows;
  int64_t hidden_size;
  int64_t rows_per_strip;
  bool aligned;
};

inline constexpr int kStatisticsMaxThreads = 512;
inline constexpr int kColumnThreadsX = 32;  // column granules of a block of the column kernel
inline constexpr int kColumnThreadsY = 8;

/// Mean and rstd of rows, for the ring kernels where the caller has none.
struct RowStatisticsParams {
  const void* x;
  float* mean;  // kLayer
  float* rstd;
  int64_t rows;
  int64_t hidden_size;
  double eps;
  bool aligned;
};

inline constexpr int kMaxGroups = 8;        // of a block of the group kernel
inline constexpr int kMaxGroupStages = 32;  // of all its groups
inline constexpr int kMaxGroupWarps = 16;   // of all its groups

/// Threads of a block of the group kernel whose registers a multiprocessor holds.
constexpr int GroupKernelThreads(int thread_elements) { return thread_elements > 24 ? 384 : 512; }

inline constexpr int kTileThreads = 512;       // of a block of the warp kernel
inline constexpr int kMaxRingThreads = 512;    // of a block that owns a row, or a part of it
inline constexpr int kRingThreadsPerSm = 512;  // what about 128 registers a thread leave room for

/// Granules of a thread of the block kernel: 16 elements; fewer where they are single and many
/// threads are better than few.
constexpr int BlockGranules(RowKind kind, int bytes_per_element, bool wide, int64_t columns) {
  constexpr int64_t kFewColumns = 1024;
  constexpr int64_t kMoreColumns = int64_t{9} * kMaxRingThreads;
  if (wide) return bytes_per_element;
  if (bytes_per_element != 4) return 16;
  if (columns <= kFewColumns) return 8;
  return kind == RowKind::kLayer && columns <= kMoreColumns ? 9 : 16;
}
/// Stages of the pipelined block kernel with which its warps need no barrier: two rows at work, one
/// done with, two under way.
inline constexpr int kRelaxedStages = 5;

/// Floats between the sums of two elements of a thread of the warp kernel: consecutive columns lie in
/// different banks.
constexpr int TileTotalsStride(int granule) { return granule > 1 ? 32 + 32 / granule : 32; }
template <int kGranule>
inline constexpr int kTileTotalsStride = TileTotalsStride(kGranule);

/// What a thread of the long-row kernel takes at a time: granules of each of so many rows, which
/// make up for granules. A chunk of the ring is one granule of every thread.
struct LongTile {
  int granules;
  int rows;
  int max_threads;  // of a block that have granules; a warp that feeds them comes on top
  int together;     // chunks whose loads overlap
  bool apart;       // a unit of rows arrives as a whole before the one before leaves; else in turns
};
/// Those that kernels are built for.
inline constexpr LongTile kLongTiles[] = {
    {4, 1, 480, 2, true}, {3, 2, 352, 1, false}, {6, 1, 352, 1, false}};
inline constexpr int kLongTileCount = static_cast<int>(std::size(kLongTiles));
/// Whether there are kernels of a tile. The second has no room for sums of two gradients where a
/// granule is 8 elements.
constexpr bool LongTileServes(int tile, RowKind kind, int element_bytes) {
  return tile != 1 || kind == RowKind::kRms || element_bytes == 4;
}
/// Units of the ring: one leaves, one arrives, and one is under way where they do not take turns.
constexpr int LeastLongUnits(LongTile tile) { return tile.apart ? 3 : 2; }
/// Whether weights wait in shared memory: sums of two gradients leave no registers for those of so
/// many elements.
constexpr bool LongWeightsAreShared(RowKind kind, int granules, int element_bytes) {
  return kind == RowKind::kLayer && element_bytes == 2 && granules > 3;
}
inline constexpr int kMaxLongSlots = 24;  // of a block's ring

/// Which ring kernel.
struct RingKernel {
  RowBackwardMethod method;
  bool wide;           // granules of 16 bytes, else single elements
  bool aligned;        // wide: all tensors begin at multiples of 16 bytes
  bool pipelined;      // kBlock: sm_90 and later; always so for kCluster
  int granules;        // of a thread; kStrips, kLong: the index of the shape
  int lanes;           // kTiles: that share a row
  bool plain = false;  // kLong: aligned, without dresidual_sum
};

/// Kernels as the runtime launches them; null where none was built. `wide`: 16 bytes of consecutive
/// elements per thread and access (hidden_size is a multiple of that), else single elements. Pair,
/// Activation, Weight: see primitives/element_types.h.
template <typename Activation>
const void* RingBackwardKernel(RowKind kind, const RingKernel& kernel);
template <typename Activation>
const void* RingBackwardFewRowsKernel(const RingKernel& kernel);
template <typename Activation>
const void* RingBackwardSegmentsKernel(RowKind kind, const RingKernel& kernel);
template <typename Activation>
const void* LongBackwardKernel(BackwardLaunchKind launch, RowKind kind, const RingKernel& kernel);
template <typename Pair>
const void* CarefulBackwardKernel(RowKind kind, RowBackwardMethod method, bool wide);
template <typename Activation>
const void* RowStatisticsKernel(RowKind kind, bool wide);
template <typename Activation>
const void* ColumnKernel(RowKind kind, bool wide);
template <typename Weight>
const void* FinalizeKernel(BackwardLaunchKind launch, bool partials_are_f64, int columns);

}  // namespace norm_device
