// What host code and the row-norm kernels agree on: arguments by value and the kernels as pointers.
// Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

enum class RowKind : uint8_t { kRms, kLayer };

/// Who owns a row and where it waits between the passes over it.
enum class RowMethod : uint8_t {
  kWarpRegisters,   // one warp, kNarrowRowElements per thread
  kWarpWide,        // one warp, WideRowElements per thread (forward only)
  kBlockNarrow,     // one block, kNarrowRowElements per thread
  kBlockMedium,     // one block, kMediumRowElements per thread (backward only)
  kBlockWide,       // one block, WideRowElements per thread
  kBlockStreaming,  // one block, the row is read again in every pass
};

inline constexpr int kNarrowRowElements = 8;
inline constexpr int kMediumRowElements = 16;
/// kBlockWide: what fits in registers without spills; single elements need an address each.
constexpr int WideRowElements(bool is_f64, bool wide) { return wide && !is_f64 ? 32 : 16; }
inline constexpr int kWarpRowThreads = 128;  // of a block whose warps own a row each
inline constexpr int kMaxBlockRowThreads = 512;

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
  int64_t rows;
  int64_t hidden_size;
  double eps;
  double weight_offset;
  bool aligned;  // all tensors of [rows, hidden_size] and [hidden_size] start at a multiple of 16
                 // bytes
  bool round_normalized;  // x * rstd is rounded to the type of x before weight is applied
};

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
const void* RowForwardKernel(RowKind kind, RowMethod method, bool wide);
template <typename Pair>
const void* RowBackwardKernel(RowKind kind, RowMethod method, bool wide);
template <typename Activation>
const void* ColumnKernel(RowKind kind, bool wide);
template <typename Weight>
const void* FinalizeKernel();

}  // namespace norm_device
