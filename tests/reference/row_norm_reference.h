// RMSNorm and LayerNorm from their definitions, in extended precision. Absent tensors are empty
// vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/element_codec.h"

namespace norm::reference {

enum class RowKind { kRms, kLayer };

/// Where values are rounded on the way: nowhere, or x * rstd to `format` before weight is applied.
enum class RowRounding { kNone, kNormalizedFirst };

struct RowNormProblem {
  RowKind kind = RowKind::kRms;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  Format format = Format::kF32;  // of the residual sum, and of kNormalizedFirst
  RowRounding rounding = RowRounding::kNone;
  std::vector<double> x;         // [rows, hidden_size]
  std::vector<double> residual;  // [rows, hidden_size]
  std::vector<double> weight;    // [hidden_size]
  std::vector<double> bias;      // [hidden_size], kLayer only
};

struct RowNormResult {
  std::vector<double> y;             // [rows, hidden_size], not rounded
  std::vector<double> y_magnitude;   // sum of the absolute terms that y is made of
  std::vector<double> residual_sum;  // rounded to format; empty without residual
  std::vector<double> mean;          // [rows]; zeros for kRms
  std::vector<double> rstd;          // [rows]
};

RowNormResult RowNormForward(const RowNormProblem& problem);

struct RowNormGradientProblem {
  RowKind kind = RowKind::kRms;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  std::vector<double> dy;             // [rows, hidden_size]
  std::vector<double> x;              // [rows, hidden_size]
  std::vector<double> weight;         // [hidden_size]
  std::vector<double> dresidual_sum;  // [rows, hidden_size]
};

struct RowNormGradients {
  std::vector<double> dx;                 // [rows, hidden_size]
  std::vector<double> dx_magnitude;       // [rows]: rstd times the largest |dy * weight|, plus the
                                          // largest |dresidual_sum|
  std::vector<double> dweight;            // [hidden_size]
  std::vector<double> dweight_magnitude;  // [hidden_size]: sum of |terms|
  std::vector<double> dbias;
  std::vector<double> dbias_magnitude;
};

RowNormGradients RowNormBackward(const RowNormGradientProblem& problem);

}  // namespace norm::reference
