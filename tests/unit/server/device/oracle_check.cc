#include "tests/unit/server/device/oracle_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>

#include "absl/strings/str_cat.h"
#include "tests/reference/batch_norm_reference.h"
#include "tests/reference/element_codec.h"
#include "tests/reference/row_norm_reference.h"

namespace norm::test {
namespace {

using server::NormProblem;
using server::TensorRole;
using Role = TensorRole;
using Values = std::vector<double>;

reference::Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return reference::Format::kF32;
    case DType::kF16:
      return reference::Format::kF16;
    case DType::kBF16:
      return reference::Format::kBF16;
    case DType::kF64:
      break;
  }
  return reference::Format::kF64;
}

Values DecodeRole(const ProblemInputs& inputs, Role role) {
  if (!inputs.problem.inputs.Has(role)) {
    return {};
  }
  const std::string& bytes = inputs.bytes[static_cast<size_t>(role)];
  return reference::Decode(
      FormatOf(TensorDType(inputs.problem, role)),
      std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

/// An output compared element by element: `scale(i)` is what rounding errors of element i are
/// relative to.
template <typename Scale>
void ExpectClose(const ProblemInputs& inputs, const server::JobResult& result, Role role,
                 const Values& expected, Scale scale) {
  const NormProblem& problem = inputs.problem;
  if (!problem.outputs.Has(role)) {
    return;
  }
  const reference::Format format = FormatOf(TensorDType(problem, role));
  const std::string bytes = OutputBytes(result, role);
  const Values actual = reference::Decode(
      format, std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  ASSERT_EQ(actual.size(), expected.size()) << TensorRoleName(role);
  const double relative = problem.dtype == DType::kF64 ? 1e-12 : 5e-6;
  int reported = 0;
  for (size_t i = 0; i < actual.size() && reported < 3; ++i) {
    const double tolerance =
        relative * std::max(scale(i), std::abs(expected[i])) + reference::Ulp(format, expected[i]);
    if (!(std::abs(actual[i] - expected[i]) <= tolerance)) {
      ADD_FAILURE() << TensorRoleName(role) << "[" << i << "] = " << actual[i] << ", oracle "
                    << expected[i] << ", tolerance " << tolerance;
      ++reported;
    }
  }
}

void ExpectRowForward(const ProblemInputs& inputs, const server::JobResult& result) {
  const NormProblem& problem = inputs.problem;
  reference::RowNormProblem oracle;
  oracle.kind = problem.op == Op::kRmsNorm ? reference::RowKind::kRms : reference::RowKind::kLayer;
  oracle.rows = problem.rows;
  oracle.hidden_size = problem.hidden_size;
  oracle.eps = problem.eps;
  oracle.weight_offset = problem.weight_offset;
  oracle.format = FormatOf(problem.dtype);
  oracle.x = DecodeRole(inputs, Role::kX);
  oracle.residual = DecodeRole(inputs, Role::kResidual);
  oracle.weight = DecodeRole(inputs, Role::kWeight);
  oracle.bias = DecodeRole(inputs, Role::kBias);
  const reference::RowNormResult expected = reference::RowNormForward(oracle);
  ExpectClose(inputs, result, Role::kY, expected.y,
              [&](size_t i) { return expected.y_magnitude[i]; });
  ExpectClose(inputs, result, Role::kResidualSum, expected.residual_sum,
              [](size_t) { return 0.0; });
  ExpectClose(inputs, result, Role::kMean, expected.mean, [](size_t) { return 1.0; });
  ExpectClose(inputs, result, Role::kRstd, expected.rstd, [](size_t) { return 0.0; });
}

void ExpectRowBackward(const ProblemInputs& inputs, const server::JobResult& result) {
  const NormProblem& problem = inputs.problem;
  reference::RowNormGradientProblem oracle;
  oracle.kind = problem.op == Op::kRmsNorm ? reference::RowKind::kRms : reference::RowKind::kLayer;
  oracle.rows = problem.rows;
  oracle.hidden_size = problem.hidden_size;
  oracle.eps = problem.eps;
  oracle.weight_offset = problem.weight_offset;
  oracle.dy = DecodeRole(inputs, Role::kDy);
  oracle.x = DecodeRole(inputs, Role::kX);
  oracle.weight = DecodeRole(inputs, Role::kWeight);
  oracle.dresidual_sum = DecodeRole(inputs, Role::kDresidualSum);
  const reference::RowNormGradients expected = reference::RowNormBackward(oracle);
  const auto hidden = static_cast<size_t>(problem.hidden_size);
  ExpectClose(inputs, result, Role::kDx, expected.dx,
              [&](size_t i) { return expected.dx_magnitude[i / hidden]; });
  ExpectClose(inputs, result, Role::kDweight, expected.dweight,
              [&](size_t i) { return expected.dweight_magnitude[i]; });
  ExpectClose(inputs, result, Role::kDbias, expected.dbias,
              [&](size_t i) { return expected.dbias_magnitude[i]; });
}

reference::ChannelShape ShapeOf(const BatchNormShape& shape) {
  return {shape.batch, shape.channels, shape.spatial,
          shape.layout == BatchNormLayout::kNchw ? reference::ChannelLayout::kNchw
                                                 : reference::ChannelLayout::kNhwc};
}

reference::StatisticsSource SourceOf(BatchNormMode mode) {
  return mode == BatchNormMode::kTraining ? reference::StatisticsSource::kBatch
                                          : reference::StatisticsSource::kRunning;
}

void ExpectBatchNormForward(const ProblemInputs& inputs, const server::JobResult& result) {
  const NormProblem& problem = inputs.problem;
  reference::BatchNormProblem oracle;
  oracle.shape = ShapeOf(problem.batch_norm_shape);
  oracle.statistics = SourceOf(problem.batch_norm_mode);
  oracle.eps = problem.eps;
  oracle.momentum = problem.momentum;
  oracle.x = DecodeRole(inputs, Role::kX);
  oracle.weight = DecodeRole(inputs, Role::kWeight);
  oracle.bias = DecodeRole(inputs, Role::kBias);
  oracle.running_mean = DecodeRole(inputs, Role::kRunningMean);
  oracle.running_var = DecodeRole(inputs, Role::kRunningVar);
  const reference::BatchNormResult expected = reference::BatchNormForward(oracle);
  const auto one = [](size_t) { return 1.0; };
  ExpectClose(inputs, result, Role::kY, expected.y,
              [&](size_t i) { return expected.y_magnitude[i]; });
  ExpectClose(inputs, result, Role::kMean, expected.mean, one);
  ExpectClose(inputs, result, Role::kRstd, expected.rstd, [](size_t) { return 0.0; });
  ExpectClose(inputs, result, Role::kRunningMean, expected.new_running_mean, one);
  ExpectClose(inputs, result, Role::kRunningVar, expected.new_running_var, one);
}

void ExpectBatchNormBackward(const ProblemInputs& inputs, const server::JobResult& result) {
  const NormProblem& problem = inputs.problem;
  reference::BatchNormGradientProblem oracle;
  oracle.shape = ShapeOf(problem.batch_norm_shape);
  oracle.statistics = SourceOf(problem.batch_norm_mode);
  oracle.eps = problem.eps;
  oracle.dy = DecodeRole(inputs, Role::kDy);
  oracle.x = DecodeRole(inputs, Role::kX);
  oracle.weight = DecodeRole(inputs, Role::kWeight);
  oracle.running_mean = DecodeRole(inputs, Role::kRunningMean);
  oracle.running_var = DecodeRole(inputs, Role::kRunningVar);
  const reference::BatchNormGradients expected = reference::BatchNormBackward(oracle);
  ExpectClose(inputs, result, Role::kDx, expected.dx, [&](size_t i) {
    return expected
        .dx_magnitude[static_cast<size_t>(oracle.shape.Channel(static_cast<int64_t>(i)))];
  });
  ExpectClose(inputs, result, Role::kDweight, expected.dweight,
              [&](size_t i) { return expected.dweight_magnitude[i]; });
  ExpectClose(inputs, result, Role::kDbias, expected.dbias,
              [&](size_t i) { return expected.dbias_magnitude[i]; });
}

}  // namespace

ProblemInputs RandomInputs(const NormProblem& problem, uint32_t seed) {
  ProblemInputs inputs;
  inputs.problem = problem;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.3, 1.0);
  for (size_t i = 0; i < server::kTensorRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if (!problem.inputs.Has(role)) {
      continue;
    }
    Values values(static_cast<size_t>(TensorElements(problem, role)));
    for (double& value : values) {
      value = normal(random);
      if (role == Role::kRunningVar) {
        value = 0.1 + value * value;
      }
    }
    const auto bytes = reference::Encode(FormatOf(TensorDType(problem, role)), values);
    inputs.bytes[i].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return inputs;
}

JobBuilder BuilderFor(const ProblemInputs& inputs) {
  JobBuilder builder(inputs.problem);
  for (size_t i = 0; i < server::kTensorRoleCount; ++i) {
    builder.Input(static_cast<Role>(i), inputs.bytes[i]);
  }
  return builder;
}

void ExpectMatchesOracle(const ProblemInputs& inputs, const server::JobResult& result) {
  const NormProblem& problem = inputs.problem;
  SCOPED_TRACE(absl::StrCat(OpName(problem.op), " ", DirectionName(problem.direction), " ",
                            DTypeName(problem.dtype), " ", problem.rows, "x", problem.hidden_size));
  ASSERT_TRUE(result.status.ok()) << result.status;
  const bool forward = problem.direction == Direction::kForward;
  if (problem.op == Op::kBatchNorm) {
    forward ? ExpectBatchNormForward(inputs, result) : ExpectBatchNormBackward(inputs, result);
  } else {
    forward ? ExpectRowForward(inputs, result) : ExpectRowBackward(inputs, result);
  }
}

std::string OutputBytes(const server::JobResult& result, TensorRole role) {
  const server::OutputTensor& output = result.outputs[static_cast<size_t>(role)];
  return std::string(reinterpret_cast<const char*>(output.data),
                     static_cast<size_t>(output.size_bytes));
}

}  // namespace norm::test
