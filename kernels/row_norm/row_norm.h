// RMSNorm and LayerNorm as one row-wise computation: the internal arguments both public ops
// translate to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"

namespace norm::internal {

/// kLayer subtracts the mean and takes a bias; kRms does neither.
enum class RowNormKind : uint8_t { kRms, kLayer };

/// Union of RmsNormForwardArgs and LayerNormForwardArgs; same meaning of every field.
struct RowNormForwardArgs {
  RowNormKind kind = RowNormKind::kRms;
  const void* x = nullptr;
  const void* residual = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;  // kLayer only
  void* y = nullptr;
  void* residual_sum = nullptr;
  void* mean = nullptr;  // kLayer only
  void* rstd = nullptr;
  void* row_scale = nullptr;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  double eps = 0.0;
  double weight_offset = 0.0;  // kRms only
  Rounding rounding = Rounding::kOnce;
  OutputFormat output_format = OutputFormat::kSameAsInput;
  float y_scale = 1.0f;
};

/// Union of RmsNormBackwardArgs and LayerNormBackwardArgs; same meaning of every field.
struct RowNormBackwardArgs {
  RowNormKind kind = RowNormKind::kRms;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* mean = nullptr;  // kLayer only
  const void* rstd = nullptr;
  const void* dresidual_sum = nullptr;
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;  // kLayer only
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  double eps = 0.0;
  double weight_offset = 0.0;  // kRms only
};

RowNormForwardArgs ToRowNorm(const RmsNormForwardArgs& args);
RowNormForwardArgs ToRowNorm(const LayerNormForwardArgs& args);
RowNormBackwardArgs ToRowNorm(const RmsNormBackwardArgs& args);
RowNormBackwardArgs ToRowNorm(const LayerNormBackwardArgs& args);

/// Every check of the four public Validate functions of the row ops.
Status Validate(const RowNormForwardArgs& args);
Status Validate(const RowNormBackwardArgs& args);

/// Whether `other` can share a launch with `first`: named by `index`, its place among the segments.
Status CheckSegment(const RowNormForwardArgs& first, const RowNormForwardArgs& other, size_t index);
Status CheckSegment(const RowNormBackwardArgs& first, const RowNormBackwardArgs& other,
                    size_t index);

/// Every check of the ValidateSegments functions of the row ops.
template <typename Args>
Status ValidateRowSegments(std::span<const Args> segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    NORM_RETURN_IF_ERROR(CheckSegment(ToRowNorm(segments[0]), ToRowNorm(segments[i]), i));
  }
  return Status();
}

template <typename Args>
std::vector<RowNormBackwardArgs> ToRowNormAll(std::span<const Args> segments) {
  std::vector<RowNormBackwardArgs> all;
  for (const Args& segment : segments) all.push_back(ToRowNorm(segment));
  return all;
}

}  // namespace norm::internal
