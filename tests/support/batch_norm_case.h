// One BatchNorm problem with its data: run it on a backend, compare every output with the oracle.
#pragma once

#include <cstddef>
#include <vector>

#include "norm/kernels/batch_norm.h"
#include "tests/support/norm_runner.h"
#include "tests/support/row_norm_case.h"

namespace norm::testing {

/// Values are exactly representable in their dtypes. Empty vectors are absent tensors.
struct BatchForwardCase {
  BatchNormShape shape;
  BatchNormMode mode = BatchNormMode::kTraining;
  DTypePair dtypes = {DType::kF32, DType::kF32};
  double eps = 1e-5;
  double momentum = 0.1;
  std::vector<double> x;
  std::vector<double> weight;
  std::vector<double> bias;
  std::vector<double> running_mean;
  std::vector<double> running_var;
};

struct BatchForwardOutputs {
  Status status;
  std::vector<std::byte> y;
  std::vector<std::byte> mean;  // training only
  std::vector<std::byte> rstd;
  std::vector<std::byte> new_running_mean;  // training with running statistics only
  std::vector<std::byte> new_running_var;
};

BatchForwardOutputs RunCase(NormRunner& runner, const BatchForwardCase& problem,
                            Placement placement = {});
void RunAndCheck(NormRunner& runner, const BatchForwardCase& problem, Placement placement = {});

struct BatchBackwardCase {
  BatchNormShape shape;
  BatchNormMode mode = BatchNormMode::kTraining;
  DTypePair dtypes = {DType::kF32, DType::kF32};
  double eps = 1e-5;
  SavedStatistics statistics = SavedStatistics::kGiven;  // training only
  bool only_dx = false;                                  // neither dweight nor dbias
  std::vector<double> dy;
  std::vector<double> x;
  std::vector<double> weight;
  std::vector<double> running_mean;  // inference only
  std::vector<double> running_var;
};

struct BatchBackwardOutputs {
  Status status;
  std::vector<std::byte> dx;
  std::vector<std::byte> dweight;
  std::vector<std::byte> dbias;
};

BatchBackwardOutputs RunCase(NormRunner& runner, const BatchBackwardCase& problem,
                             Placement placement = {});
void RunAndCheck(NormRunner& runner, const BatchBackwardCase& problem, Placement placement = {});

/// The tensor of `shape` in the other layout, with the same logical values.
std::vector<double> ToOtherLayout(const BatchNormShape& shape, const std::vector<double>& values);

}  // namespace norm::testing
