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
