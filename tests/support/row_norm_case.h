// One row-norm problem with its data: run it on a backend, compare every output with the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"
#include "tests/reference/row_norm_reference.h"
#include "tests/support/norm_runner.h"
#include "tests/support/tensor_data.h"

namespace norm::testing {

/// A pair that IsSupportedWeightDType accepts.
struct DTypePair {
  DType dtype;
  DType weight_dtype;
};
inline constexpr DTypePair kDTypePairs[] = {
    {DType::kF32, DType::kF32},   {DType::kF16, DType::kF16},  {DType::kF16, DType::kF32},
    {DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32}, {DType::kF64, DType::kF64},
    {DType::kF64, DType::kF32}};

/// "F16", or "F16WeightF32" where they differ.
std::string DTypePairName(DTypePair pair);

/// Values are exactly representable in their dtypes. Empty vectors are absent tensors.
struct RowForwardCase {
  Op op = Op::kRmsNorm;  // kRmsNorm or kLayerNorm
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DTypePair dtypes = {DType::kF32, DType::kF32};
  double eps = 1e-5;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  OutputFormat output_format = OutputFormat::kSameAsInput;
  float y_scale = 1.0F;
  std::vector<double> x;
  std::vector<double> residual;
  std::vector<double> weight;
  std::vector<double> bias;
};

/// Outputs as bytes, for bit comparisons, all of them requested.
struct RowForwardOutputs {
  Status status;
  std::vector<std::byte> y;
  std::vector<std::byte> residual_sum;
  std::vector<std::byte> mean;  // kLayerNorm only
  std::vector<std::byte> rstd;
  std::vector<std::byte> row_scale;  // with HasRowScale(output_format) only
};

RowForwardOutputs RunCase(NormRunner& runner, const RowForwardCase& problem,
                          Placement placement = {});

/// Runs and compares y, residual_sum, mean and rstd with the oracle; differences are test failures.
void RunAndCheck(NormRunner& runner, const RowForwardCase& problem, Placement placement = {});

/// Whether the backward call is given the forward's statistics or computes them.
enum class SavedStatistics { kGiven, kRecomputed };

struct RowBackwardCase {
  Op op = Op::kRmsNorm;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  DTypePair dtypes = {DType::kF32, DType::kF32};
  double eps = 1e-5;
  double weight_offset = 0.0;
  SavedStatistics statistics = SavedStatistics::kGiven;
  std::vector<double> dy;
  std::vector<double> x;
  std::vector<double> weight;
  std::vector<double> dresidual_sum;
};

struct RowBackwardOutputs {
  Status status;
  std::vector<std::byte> dx;
  std::vector<std::byte> dweight;
  std::vector<std::byte> dbias;  // kLayerNorm only
};

RowBackwardOutputs RunCase(NormRunner& runner, const RowBackwardCase& problem,
                           Placement placement = {});
void RunAndCheck(NormRunner& runner, const RowBackwardCase& problem, Placement placement = {});

}  // namespace norm::testing
