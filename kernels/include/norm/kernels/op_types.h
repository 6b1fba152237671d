// The closed sets that kernels, scheduler, transport and metrics all speak of. Standard library
// only.
#pragma once

#include <cstdint>

namespace norm {

enum class Op : uint8_t { kRmsNorm, kLayerNorm, kBatchNorm };
inline constexpr int kOpCount = 3;

enum class Direction : uint8_t { kForward, kBackward };
inline constexpr int kDirectionCount = 2;

/// How y is rounded: once at the end, or x * rstd rounded to the dtype of x before weight is
/// applied (HF Llama parity).
enum class Rounding : uint8_t { kOnce, kNormalizedFirst };

/// What y of a row norm's forward is stored as. The quantized formats take one byte per element and
/// no f64 x. They are computed from y in f32, before any rounding to the dtype of x:
///
///   kF8E4M3        q = f8(y * (1 / y_scale)), y_scale given by the caller
///   kF8E4M3PerRow  row_scale[r] = max_h |y[r,h]| / 448, q[r,h] = f8(y[r,h] * (1 / row_scale[r]))
///   kInt8PerRow    row_scale[r] = max_h |y[r,h]| / 127, q[r,h] = int8(y[r,h] * (1 / row_scale[r]))
///
/// so that y is about q * scale. Scales and quotients are f32, to within a few of its roundings.
/// f8 is E4M3 of arXiv:2209.05433 (no infinities), to the nearest, ties to even, saturated at 448
/// with the sign of y, infinities too; NaN is 0x7f: CUDA's __NV_SATFINITE. int8 is to the nearest,
/// ties to even, in [-127, 127].
/// A row scale below 2^-126, as of a row of zeros, is returned as 0; all q of the row are zeros. A
/// row whose largest |y| is not finite has that as its scale (NaN if there is a NaN); all q of the
/// row are NaN in f8, 0 in int8.
enum class OutputFormat : uint8_t { kSameAsInput, kF8E4M3, kF8E4M3PerRow, kInt8PerRow };
inline constexpr int kOutputFormatCount = 4;

/// Whether the call returns a scale for each row.
constexpr bool HasRowScale(OutputFormat format) {
  return format == OutputFormat::kF8E4M3PerRow || format == OutputFormat::kInt8PerRow;
}

/// "same_as_input", "f8e4m3", "f8e4m3_per_row", "int8_per_row".
constexpr const char* OutputFormatName(OutputFormat format) {
  switch (format) {
    case OutputFormat::kSameAsInput:
      return "same_as_input";
    case OutputFormat::kF8E4M3:
      return "f8e4m3";
    case OutputFormat::kF8E4M3PerRow:
      return "f8e4m3_per_row";
    case OutputFormat::kInt8PerRow:
      return "int8_per_row";
  }
  return "unknown";
}

/// Where the channels of a BatchNorm tensor are: [N, C, spatial...] or [N, spatial..., C].
enum class BatchNormLayout : uint8_t { kNchw, kNhwc };

/// Statistics of this batch, or the running ones.
enum class BatchNormMode : uint8_t { kTraining, kInference };

/// "rms_norm", "layer_norm", "batch_norm": the spelling of metrics, logs and GetServerInfo.
constexpr const char* OpName(Op op) {
  switch (op) {
    case Op::kRmsNorm:
      return "rms_norm";
    case Op::kLayerNorm:
      return "layer_norm";
    case Op::kBatchNorm:
      return "batch_norm";
  }
  return "unknown";
}

/// "forward" or "backward".
constexpr const char* DirectionName(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

}  // namespace norm
