// What host code and the row-norm backward kernels agree on: arguments by value and the kernels as
// pointers. Standard library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Who owns a row and where it waits between the passes over it.
enum class RowBackwardMethod : uint8_t {
  kWarpRegisters,   // one warp, kBackwardNarrowElements per thread
  kBlockNarrow,     // one block, kBackwardNarrowElements per thread
  kBlockMedium,     // one block, kBackwardMediumElements per thread
  kBlockWide,       // one block, BackwardWideElements per thread
  kBlockStreaming,  // one block, the row is read again in every pass
};

inline constexpr int kBackwardNarrowElements = 8;
inline constexpr int kBackwardMediumElements = 16;
/// kBlockWide: what fits in registers without spills; single elements need an address each.
constexpr int BackwardWideElements(bool is_f64, bool wide) { return wide && !is_f64 ? 32 : 16; }
inline constexpr int kBackwardWarpRowThreads = 128;  // of a block whose warps own a row each
inline constexpr int kBackwardMaxThreads = 512;

/// Statistics that row kernels hand to the column kernel, [rows] each, in the compute type.
struct RowStatistics {
  void* mean;             // kLayer
  void* mean_correction;  // kLayer: the mean is mean + mean_correction
  void* rstd;
};

struct RowBackwardParams {
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

/// Adds up partials in order: gradient[h] = sum_p partials[p, h]. Zero partials give zeros.
struct FinalizeParams {
  const double* dweight_partials;
  const double* dbias_partials;
  void* dweight;
  void* dbias;
  int64_t partials;
  int64_t hidden_size;
};

inline constexpr int kColumnThreadsX = 32;  // column granules of a block of the column kernel
inline constexpr int kColumnThreadsY = 8;
inline constexpr int kFinalizeThreadsX = 32;
inline constexpr int kFinalizeThreadsY = 16;

/// Kernels as the runtime launches them. `wide`: 16 bytes of consecutive elements per thread and
/// access (hidden_size is a multiple of that), else single elements. Pair and Activation: see
/// primitives/element_types.h.
template <typename Pair>
const void* RowBackwardKernel(RowKind kind, RowBackwardMethod method, bool wide);
template <typename Activation>
const void* ColumnKernel(RowKind kind, bool wide);
template <typename Weight>
const void* FinalizeKernel();

}  // namespace norm_device
