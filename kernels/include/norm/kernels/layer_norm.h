// LayerNorm, forward and backward, on the current CUDA device and on the CPU.
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

/// Arguments of LayerNormForward. Shapes and dtypes: see there.
struct LayerNormForwardArgs {
  const void* x = nullptr;
  const void* residual = nullptr;  // optional
  const void* weight = nullptr;    // optional: absent acts as 1
  const void* bias = nullptr;      // optional: absent acts as 0
  void* y = nullptr;
  void* residual_sum = nullptr;  // required with residual, null without
  void* mean = nullptr;          // optional
  void* rstd = nullptr;          // optional
  void* row_scale = nullptr;     // required with a per-row output_format, null without
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of weight and bias
  double eps = 1e-5;
  Rounding rounding = Rounding::kOnce;
  OutputFormat output_format = OutputFormat::kSameAsInput;
  float y_scale = 1.0f;  // with OutputFormat::kF8E4M3, else 1; in [2^-126, 2^126]
};

/// Arguments of LayerNormBackward. Shapes and dtypes: see there.
struct LayerNormBackwardArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;  // optional
  const void* mean = nullptr;    // with rstd or not at all: recomputed from x when null
  const void* rstd = nullptr;
  const void* dresidual_sum = nullptr;  // optional: added to dx before rounding
  void* dx = nullptr;
  void* dweight = nullptr;  // optional
  void* dbias = nullptr;    // optional
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of weight, dweight and dbias
  double eps = 1e-5;
};

/// Checks what does not depend on a device: sizes, required pointers, dtype pairs, eps, aliasing.
Status Validate(const LayerNormForwardArgs& args);
Status Validate(const LayerNormBackwardArgs& args);

/// Validate of every segment, and that they can share a launch.
Status ValidateSegments(std::span<const LayerNormForwardArgs> segments);
Status ValidateSegments(std::span<const LayerNormBackwardArgs> segments);

/// Normalizes each row to zero mean and unit variance.
///
/// Math:         s = x + residual (rounded to dtype), mean[r] = mean_h(s), rstd[r] = 1 /
///                 sqrt(mean_h((s - mean)^2) + eps)
///               y[r,h] = (s[r,h] - mean[r]) * rstd[r] * weight[h] + bias[h]
/// Source:       arXiv:1607.06450
/// Shapes:       x, residual, residual_sum, y [rows, hidden_size]; weight, bias [hidden_size];
///               mean, rstd, row_scale [rows]
/// Dtypes:       x = residual = residual_sum in {f32, f16, bf16, f64}, y the same or one byte as
///               output_format says (OutputFormat, not for f64); row_scale f32; weight = bias
///               same as x or f32; mean, rstd f32 (f64 for f64)
/// Numerics:     the mean is kept as a high and a low part, so rows whose mean is many times their
///               spread keep full precision; never E[x^2] - E[x]^2. With eps = 0 a constant row is
///               NaN
/// Layout:       contiguous, no alignment required beyond the element's
/// Limits:       hidden_size >= 1; rows >= 0, zero enqueues nothing; 64-bit element offsets
/// Optional:     residual, weight, bias, mean, rstd may be null
/// Aliasing:     y (of the dtype of x) or residual_sum may equal x or residual exactly; any other
///               overlap is an error
/// Ownership:    borrows every pointer until work on `stream` completes; allocates nothing
/// Stream:       enqueues on `stream`, returns without synchronizing; its device must be current
/// Workspace:    LayerNormForwardWorkspaceBytes(args) bytes, kWorkspaceAlignment
/// Determinism:  bitwise equal run to run; a row's bits depend on its data, hidden_size, dtypes and
///               the device model only
/// Errors:       kInvalidArgument as Validate; kCuda if the launch is refused
/// Threads:      safe to call concurrently on different streams
Status LayerNormForward(const LayerNormForwardArgs& args, Workspace workspace, StreamHandle stream);
size_t LayerNormForwardWorkspaceBytes(const LayerNormForwardArgs& args);

/// LayerNormForward of several requests at once, in as few launches as possible.
///
/// Shapes, Dtypes: hidden_size, dtype and weight_dtype are those of the first segment; everything
///               else may differ. Segments without rows are allowed, and no segments at all
/// Aliasing:     within a segment as LayerNormForward; an output of one segment must not overlap any
///               tensor of another, which is not checked
/// Workspace:    LayerNormForwardSegmentsWorkspaceBytes(segments) bytes
/// Determinism:  the bits of a segment are those of LayerNormForward on it alone
/// Errors:       kInvalidArgument with the index of the first segment that Validate refuses or that
///               differs from the first; nothing is enqueued then
/// Math, Limits, Ownership, Stream, Threads: as LayerNormForward
Status LayerNormForwardSegments(std::span<const LayerNormForwardArgs> segments, Workspace workspace,
                                StreamHandle stream);
size_t LayerNormForwardSegmentsWorkspaceBytes(std::span<const LayerNormForwardArgs> segments);

/// Gradients of LayerNormForward with respect to x (of the sum, where a residual was added), weight
/// and bias.
///
/// Math:         h = (x - mean) * rstd, g = dy * weight
///               dx = rstd * (g - mean_h(g) - h * mean_h(g * h)) + dresidual_sum
///               dweight[h] = sum_r dy[r,h] * h[r,h], dbias[h] = sum_r dy[r,h]
/// Source:       derivative of arXiv:1607.06450
/// Shapes:       dy, x, dresidual_sum, dx [rows, hidden_size]; weight, dweight, dbias
///               [hidden_size]; mean, rstd [rows]
/// Dtypes:       dy = x = dresidual_sum = dx; weight = dweight = dbias same as x or f32; mean, rstd
///               f32 (f64 for f64); dweight, dbias summed in f32 or wider, in a fixed order
/// Numerics:     a given f32 mean is corrected by mean_h(x - mean): its rounding does not reach dx,
///               nor dweight of up to 16 rows, whose terms may all be small
/// Limits:       as forward; zero rows write zero dweight and dbias
/// Aliasing:     dx may equal dy, x or dresidual_sum exactly; partial overlap is an error
/// Workspace:    LayerNormBackwardWorkspaceBytes(args) bytes on the current device
/// Determinism:  bitwise equal run to run; dx row by row as forward; dweight, dbias depend on the
///               arguments and device model only
/// Ownership, Stream, Errors, Threads: as LayerNormForward
Status LayerNormBackward(const LayerNormBackwardArgs& args, Workspace workspace,
                         StreamHandle stream);
size_t LayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args);

/// LayerNormBackward of several requests at once, in as few launches as possible.
///
/// Determinism:  the bits of a segment, gradients of parameters included, are those of
///               LayerNormBackward on it alone
/// Workspace:    LayerNormBackwardSegmentsWorkspaceBytes(segments) bytes on the current device
/// Shapes, Dtypes, Aliasing, Errors: as LayerNormForwardSegments
/// Math, Limits, Ownership, Stream, Threads: as LayerNormBackward
Status LayerNormBackwardSegments(std::span<const LayerNormBackwardArgs> segments,
                                 Workspace workspace, StreamHandle stream);
size_t LayerNormBackwardSegmentsWorkspaceBytes(std::span<const LayerNormBackwardArgs> segments);

namespace cpu {

/// The same computations on host memory, complete on return. Bits do not depend on the number of
/// threads. Reductions are in f64 for every dtype: squares of finite f32 and bf16 values neither
/// overflow nor underflow, with eps = 0 too.
Status LayerNormForward(const LayerNormForwardArgs& args, Workspace workspace, ThreadPool& threads);
size_t LayerNormForwardWorkspaceBytes(const LayerNormForwardArgs& args);
Status LayerNormForwardSegments(std::span<const LayerNormForwardArgs> segments, Workspace workspace,
                                ThreadPool& threads);
size_t LayerNormForwardSegmentsWorkspaceBytes(std::span<const LayerNormForwardArgs> segments);
Status LayerNormBackward(const LayerNormBackwardArgs& args, Workspace workspace,
                         ThreadPool& threads);
size_t LayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args);
Status LayerNormBackwardSegments(std::span<const LayerNormBackwardArgs> segments,
                                 Workspace workspace, ThreadPool& threads);
size_t LayerNormBackwardSegmentsWorkspaceBytes(std::span<const LayerNormBackwardArgs> segments);

}  // namespace cpu
}  // namespace norm
