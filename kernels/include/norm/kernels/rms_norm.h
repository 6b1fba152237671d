// RMSNorm, forward and backward, on the current CUDA device and on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"
#include "norm/kernels/status.h"
#include "norm/kernels/thread_pool.h"
#include "norm/kernels/workspace.h"

namespace norm {

/// Arguments of RmsNormForward. Shapes and dtypes: see there.
struct RmsNormForwardArgs {
  const void* x = nullptr;
  const void* residual = nullptr;  // optional
  const void* weight = nullptr;    // optional: absent acts as 1
  void* y = nullptr;
  void* residual_sum = nullptr;  // required with residual, null without
  void* rstd = nullptr;          // optional
  void* row_scale = nullptr;     // required with a per-row output_format, null without
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  double eps = 1e-6;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  OutputFormat output_format = OutputFormat::kSameAsInput;
  float y_scale = 1.0f;  // with OutputFormat::kF8E4M3, else 1; in [2^-126, 2^126]
};

/// Arguments of RmsNormBackward. Shapes and dtypes: see there.
struct RmsNormBackwardArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;         // optional
  const void* rstd = nullptr;           // optional: recomputed from x when null
  const void* dresidual_sum = nullptr;  // optional: added to dx before rounding
  void* dx = nullptr;
  void* dweight = nullptr;  // optional
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // also the dtype of dweight
  double eps = 1e-6;
  double weight_offset = 0.0;
};

/// Checks what does not depend on a device: sizes, required pointers, dtype pairs, eps, aliasing.
Status Validate(const RmsNormForwardArgs& args);
Status Validate(const RmsNormBackwardArgs& args);

/// Validate of every segment, and that they can share a launch.
Status ValidateSegments(std::span<const RmsNormForwardArgs> segments);
Status ValidateSegments(std::span<const RmsNormBackwardArgs> segments);

/// Normalizes each row by its root mean square.
///
/// Math:         s = x + residual (rounded to dtype), rstd[r] = 1 / sqrt(mean_h(s[r,h]^2) + eps)
///               y[r,h] = s[r,h] * rstd[r] * (weight[h] + weight_offset)
/// Source:       arXiv:1910.07467; weight_offset as in Gemma, residual as in fused add-norm kernels
/// Shapes:       x, residual, residual_sum, y [rows, hidden_size]; weight [hidden_size]; rstd,
///               row_scale [rows]
/// Dtypes:       x = residual = residual_sum in {f32, f16, bf16, f64}, y the same or one byte as
///               output_format says (OutputFormat, not for f64); row_scale f32; weight same as x
///               or f32; rstd f32 (f64 for f64); sums in f32 (f64 for f64)
/// Layout:       contiguous, no alignment required beyond the element's
/// Limits:       hidden_size >= 1; rows >= 0, zero enqueues nothing; 64-bit element offsets
/// Optional:     residual, weight, rstd may be null
/// Aliasing:     y (of the dtype of x) or residual_sum may equal x or residual exactly; any other
///               overlap is an error
/// Ownership:    borrows every pointer until work on `stream` completes; allocates nothing
/// Stream:       enqueues on `stream`, returns without synchronizing; its device must be current
/// Workspace:    RmsNormForwardWorkspaceBytes(args) bytes, kWorkspaceAlignment
/// Determinism:  bitwise equal run to run; a row's bits depend on its data, hidden_size, dtypes and
///               the device model only
/// Errors:       kInvalidArgument as Validate; kCuda if the launch is refused
/// Threads:      safe to call concurrently on different streams
Status RmsNormForward(const RmsNormForwardArgs& args, Workspace workspace, StreamHandle stream);
size_t RmsNormForwardWorkspaceBytes(const RmsNormForwardArgs& args);

/// RmsNormForward of several requests at once, in as few launches as possible.
///
/// Shapes, Dtypes: hidden_size, dtype and weight_dtype are those of the first segment; everything
///               else may differ. Segments without rows are allowed, and no segments at all
/// Aliasing:     within a segment as RmsNormForward; an output of one segment must not overlap any
///               tensor of another, which is not checked
/// Workspace:    RmsNormForwardSegmentsWorkspaceBytes(segments) bytes
/// Determinism:  the bits of a segment are those of RmsNormForward on it alone
/// Errors:       kInvalidArgument with the index of the first segment that Validate refuses or that
///               differs from the first; nothing is enqueued then
/// Math, Limits, Ownership, Stream, Threads: as RmsNormForward
Status RmsNormForwardSegments(std::span<const RmsNormForwardArgs> segments, Workspace workspace,
                              StreamHandle stream);
size_t RmsNormForwardSegmentsWorkspaceBytes(std::span<const RmsNormForwardArgs> segments);

/// Gradients of RmsNormForward with respect to x (of the sum, where a residual was added) and
/// weight.
///
/// Math:         h = x * rstd, g = dy * (weight + weight_offset)
///               dx = rstd * (g - h * mean_h(g * h)) + dresidual_sum, dweight[h] = sum_r dy[r,h] *
///                 h[r,h]
/// Source:       derivative of arXiv:1910.07467
/// Shapes:       dy, x, dresidual_sum, dx [rows, hidden_size]; weight, dweight [hidden_size]; rstd
///               [rows]
/// Dtypes:       dy = x = dresidual_sum = dx; weight = dweight same as x or f32; rstd f32 (f64 for
///               f64); dweight summed in f32 or wider, in a fixed order
/// Limits:       as forward; zero rows write a zero dweight
/// Aliasing:     dx may equal dy, x or dresidual_sum exactly; partial overlap is an error
/// Workspace:    RmsNormBackwardWorkspaceBytes(args) bytes on the current device
/// Determinism:  bitwise equal run to run; dx row by row as forward; dweight depends on the
///               arguments and device model only
/// Ownership, Stream, Errors, Threads: as RmsNormForward
Status RmsNormBackward(const RmsNormBackwardArgs& args, Workspace workspace, StreamHandle stream);
size_t RmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args);

/// RmsNormBackward of several requests at once, in as few launches as possible.
///
/// Determinism:  the bits of a segment, gradients of parameters included, are those of
///               RmsNormBackward on it alone
/// Workspace:    RmsNormBackwardSegmentsWorkspaceBytes(segments) bytes on the current device
/// Shapes, Dtypes, Aliasing, Errors: as RmsNormForwardSegments
/// Math, Limits, Ownership, Stream, Threads: as RmsNormBackward
Status RmsNormBackwardSegments(std::span<const RmsNormBackwardArgs> segments, Workspace workspace,
                               StreamHandle stream);
size_t RmsNormBackwardSegmentsWorkspaceBytes(std::span<const RmsNormBackwardArgs> segments);

namespace cpu {

/// The same computations on host memory, complete on return. Bits do not depend on the number of
/// threads. Reductions are in f64 for every dtype: squares of finite f32 and bf16 values neither
/// overflow nor underflow, with eps = 0 too.
Status RmsNormForward(const RmsNormForwardArgs& args, Workspace workspace, ThreadPool& threads);
size_t RmsNormForwardWorkspaceBytes(const RmsNormForwardArgs& args);
Status RmsNormForwardSegments(std::span<const RmsNormForwardArgs> segments, Workspace workspace,
                              ThreadPool& threads);
size_t RmsNormForwardSegmentsWorkspaceBytes(std::span<const RmsNormForwardArgs> segments);
Status RmsNormBackward(const RmsNormBackwardArgs& args, Workspace workspace, ThreadPool& threads);
size_t RmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args);
Status RmsNormBackwardSegments(std::span<const RmsNormBackwardArgs> segments, Workspace workspace,
                               ThreadPool& threads);
size_t RmsNormBackwardSegmentsWorkspaceBytes(std::span<const RmsNormBackwardArgs> segments);

}  // namespace cpu
}  // namespace norm
