// BatchNorm, forward (training and inference) and backward, on the current CUDA device and on the
// CPU.
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

/// The shape of a BatchNorm tensor: [batch, channels, spatial] (NCHW) or [batch, spatial, channels]
/// (NHWC). [N, C] has spatial = 1, where the two layouts are the same.
struct BatchNormShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t spatial = 1;
  BatchNormLayout layout = BatchNormLayout::kNchw;
};

/// Arguments of BatchNormForward. Shapes and dtypes: see there.
struct BatchNormForwardArgs {
  const void* x = nullptr;
  const void* weight = nullptr;  // optional: absent acts as 1
  const void* bias = nullptr;    // optional: absent acts as 0
  const void* running_mean =
      nullptr;  // required in inference; in training with running_var or not at all
  const void* running_var = nullptr;
  void* y = nullptr;
  void* mean = nullptr;  // optional, training only
  void* rstd = nullptr;  // optional
  void* new_running_mean =
      nullptr;  // training: required with running_mean, null without; may equal running_mean
  void* new_running_var = nullptr;
  BatchNormShape shape;
  BatchNormMode mode = BatchNormMode::kTraining;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of weight and bias
  double eps = 1e-5;
  double momentum = 0.1;  // weight of the new value, in [0, 1]
};

/// Arguments of BatchNormBackward. Shapes and dtypes: see there.
struct BatchNormBackwardArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;       // optional
  const void* mean = nullptr;         // training: batch mean, with rstd or not at all (recomputed);
                                      // inference: running_mean
  const void* rstd = nullptr;         // training: with mean or not at all; inference: null
  const void* running_var = nullptr;  // inference: required; training: null
  void* dx = nullptr;
  void* dweight = nullptr;  // optional
  void* dbias = nullptr;    // optional
  BatchNormShape shape;
  BatchNormMode mode = BatchNormMode::kTraining;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of weight, dweight and dbias
  double eps = 1e-5;
};

/// Checks what does not depend on a device: sizes, required pointers, dtype pairs, eps, momentum,
/// aliasing; in training at least two values per channel, unless the tensor is empty.
Status Validate(const BatchNormForwardArgs& args);
Status Validate(const BatchNormBackwardArgs& args);

/// Validate of every segment, and that channels, spatial size, layout, mode and dtypes are those of
/// the first.
Status ValidateSegments(std::span<const BatchNormForwardArgs> segments);
Status ValidateSegments(std::span<const BatchNormBackwardArgs> segments);

/// Normalizes each channel over batch and spatial positions.
///
/// Math:         training: mean, var (biased) over the n = batch * spatial values of channel c;
///                 inference: the running ones
///               rstd[c] = 1 / sqrt(var[c] + eps), y = (x - mean[c]) * rstd[c] * weight[c] +
///                 bias[c]
///               new_running_mean = (1 - momentum) * running_mean + momentum * mean
///               new_running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
/// Source:       arXiv:1502.03167 algorithm 1; running statistics as PyTorch (momentum weights the
///               new value)
/// Shapes:       x, y as args.shape; everything else [channels]
/// Dtypes:       x = y in {f32, f16, bf16, f64}; weight = bias same as x or f32; statistics f32
///               (f64 for f64)
/// Numerics:     f32 carries differences from a value near by, over a few values; all else is summed
///               in f64. Squares that f32 cannot hold are taken again in f64: finite values of any
///               size are normalized. x * weight does not overflow on its own
/// Layout:       contiguous in the named layout, no alignment required beyond the element's
/// Limits:       channels >= 1; batch, spatial >= 0. An empty tensor writes nothing to y, copies
///               the running statistics unchanged, and sets mean to 0 and rstd to 1 / sqrt(eps)
/// Aliasing:     y may equal x exactly; partial overlap is an error
/// Ownership:    borrows every pointer until work on `stream` completes; allocates nothing
/// Stream:       enqueues on `stream`, returns without synchronizing; its device must be current
/// Workspace:    BatchNormForwardWorkspaceBytes(args) bytes, kWorkspaceAlignment
/// Determinism:  bitwise equal run to run; a channel's bits depend on its data, the shape, dtypes
///               and the device model only
/// Errors:       kInvalidArgument as Validate; kCuda if a launch is refused
/// Threads:      safe to call concurrently on different streams
Status BatchNormForward(const BatchNormForwardArgs& args, Workspace workspace, StreamHandle stream);
size_t BatchNormForwardWorkspaceBytes(const BatchNormForwardArgs& args);

/// BatchNormForward of several requests; each has statistics of its own. Neighbours of equal batch
/// share launches where their kernel reads its input once.
///
/// Shapes, Dtypes: channels, spatial, layout, mode, dtype and weight_dtype are those of the first
///               segment; everything else may differ. Empty segments are allowed, and no segments
/// Aliasing:     within a segment as BatchNormForward; an output of one segment must not overlap
///               any tensor of another, which is not checked
/// Workspace:    BatchNormForwardSegmentsWorkspaceBytes(segments) bytes
/// Determinism:  the bits of a segment are those of BatchNormForward on it alone
/// Errors:       kInvalidArgument with the index of the first segment that Validate refuses or that
///               differs from the first; nothing is enqueued then
/// Math, Limits, Ownership, Stream, Threads: as BatchNormForward
Status BatchNormForwardSegments(std::span<const BatchNormForwardArgs> segments, Workspace workspace,
                                StreamHandle stream);
size_t BatchNormForwardSegmentsWorkspaceBytes(std::span<const BatchNormForwardArgs> segments);

/// Gradients of BatchNormForward in either mode.
///
/// Math:         h = (x - mean[c]) * rstd[c], dweight[c] = sum dy * h, dbias[c] = sum dy, n = batch
///                 * spatial
///               training:  dx = weight[c] * rstd[c] * (dy - dbias[c] / n - h * dweight[c] / n)
///               inference: dx = dy * weight[c] * rstd[c] with the running statistics
/// Source:       arXiv:1502.03167 section 3
/// Shapes:       dy, x, dx as args.shape; everything else [channels]
/// Dtypes:       dy = x = dx; weight = dweight = dbias same as x or f32; statistics f32 (f64 for
///               f64); sums in f32 or wider, in a fixed order
/// Limits:       as forward; an empty tensor writes zero dweight and dbias
/// Aliasing:     dx may equal dy or x exactly; partial overlap is an error
/// Workspace:    BatchNormBackwardWorkspaceBytes(args) bytes on the current device
/// Ownership, Stream, Determinism, Errors, Threads: as BatchNormForward
Status BatchNormBackward(const BatchNormBackwardArgs& args, Workspace workspace,
                         StreamHandle stream);
size_t BatchNormBackwardWorkspaceBytes(const BatchNormBackwardArgs& args);

/// BatchNormBackward of several requests: all else as BatchNormForwardSegments.
Status BatchNormBackwardSegments(std::span<const BatchNormBackwardArgs> segments,
                                 Workspace workspace, StreamHandle stream);
size_t BatchNormBackwardSegmentsWorkspaceBytes(std::span<const BatchNormBackwardArgs> segments);

namespace cpu {

/// The same computations on host memory, complete on return. Bits do not depend on the number of
/// threads. Reductions are in f64 for every dtype: squares of finite f32 and bf16 values neither
/// overflow nor underflow, with eps = 0 too.
Status BatchNormForward(const BatchNormForwardArgs& args, Workspace workspace, ThreadPool& threads);
size_t BatchNormForwardWorkspaceBytes(const BatchNormForwardArgs& args);
Status BatchNormBackward(const BatchNormBackwardArgs& args, Workspace workspace,
                         ThreadPool& threads);
size_t BatchNormBackwardWorkspaceBytes(const BatchNormBackwardArgs& args);
Status BatchNormForwardSegments(std::span<const BatchNormForwardArgs> segments, Workspace workspace,
                                ThreadPool& threads);
size_t BatchNormForwardSegmentsWorkspaceBytes(std::span<const BatchNormForwardArgs> segments);
Status BatchNormBackwardSegments(std::span<const BatchNormBackwardArgs> segments,
                                 Workspace workspace, ThreadPool& threads);
size_t BatchNormBackwardSegmentsWorkspaceBytes(std::span<const BatchNormBackwardArgs> segments);

}  // namespace cpu
}  // namespace norm
