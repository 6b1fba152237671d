// What host code and the row-norm forward kernels agree on: arguments by value and the kernels as pointers.
// Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

enum class RowKind : uint8_t { kRms, kLayer };

/// Who owns a row and where it waits between the passes over it.
enum class RowMethod : uint8_t {
  kWarpRegisters,   // one warp, kNarrowRowElements per thread
  kWarpWide,        // one warp, WideRowElements per thread
  kBlockNarrow,     // one block, kNarrowRowElements per thread
  kBlockWide,       // one block, WideRowElements per thread
  kBlockStreaming,  // one block, the row is read again in every pass
};

inline constexpr int kNarrowRowElements = 8;
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

/// Kernels as the runtime launches them. `wide`: 16 bytes of consecutive elements per thread and
/// access (hidden_size is a multiple of that), else single elements. Pair: see
/// primitives/element_types.h.
template <typename Pair>
const void* RowForwardKernel(RowKind kind, RowMethod method, bool wide);

}  // namespace norm_device
