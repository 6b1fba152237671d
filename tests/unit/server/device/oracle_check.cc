#include "tests/unit/server/device/oracle_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>

#include "absl/strings/str_cat.h"
#include "tests/reference/batch_norm_reference.h"
#include "tests/reference/element_codec.h"
#include "tests/reference/row_norm_reference.h"
#include "tests/support/tensor_data.h"
#include "tests/support/tolerance.h"

namespace norm::test {
namespace {

using server::NormProblem;
using server::TensorRole;
using Role = TensorRole;
using Values = std::vector<double>;
using testing::FormatOf;
using testing::Output;

Values DecodeRole(const ProblemInputs& inputs, Role role) {
  if (!inputs.problem.inputs.Has(role)) {
    return {};
  }
  const std::string& bytes = inputs.bytes[static_cast<size_t>(role)];
  return reference::Decode(
      FormatOf(TensorDType(inputs.problem, role)),
      std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

/// An output by the rule of the tolerance table.
void ExpectClose(const ProblemInputs& inputs, const server::JobResult& result, Role role,
                 Output rule, const testing::Expectation& expected) {
  if (!inputs.problem.outputs.Has(role)) {
    return;
  }
  const DType dtype = TensorDType(inputs.problem, role);
  const std::string bytes = OutputBytes(result, role);
  const Values actual = reference::Decode(
      FormatOf(dtype), std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  EXPECT_TRUE(testing::Matches(rule, dtype, actual, expected)) << TensorRoleName(role);
}

/// The largest |value| of each group.
template <typename GroupOf>
Values GroupMaxima(const Values& values, size_t groups, GroupOf group_of) {
  Values maxima(groups);
  for (size_t i = 0; i < values.size(); ++i) {
    maxima[group_of(i)] = std::max(maxima[group_of(i)], std::fabs(values[i]));
  }
  return maxima;
}

std::function<double(size_t)> Magnitude(const Values& values) {
  return [&values](size_t i) { return std::fabs(values[i]); };
}

/// |mean| + standard deviation.
std::function<double(size_t)> MeanScale(const Values& mean, const Values& rstd) {
  return [&](size_t i) { return std::fabs(mean[i]) + 1.0 / rstd[i]; };
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
  ExpectClose(inputs, result, Role::kY, Output::kY, {&expected.y, Magnitude(expected.y_magnitude)});
  ExpectClose(inputs, result, Role::kResidualSum, Output::kRunning,
              {&expected.residual_sum, testing::Constant(0.0)});
  ExpectClose(inputs, result, Role::kMean, Output::kMean,
              {&expected.mean, MeanScale(expected.mean, expected.rstd)});
  ExpectClose(inputs, result, Role::kRstd, Output::kRstd,
              {&expected.rstd, Magnitude(expected.rstd)});
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
  const auto row = [hidden = static_cast<size_t>(problem.hidden_size)](size_t i) {
    return i / hidden;
  };
  const Values largest = GroupMaxima(expected.dx, static_cast<size_t>(problem.rows), row);
  ExpectClose(inputs, result, Role::kDx, Output::kDx,
              {&expected.dx, [&](size_t i) { return largest[row(i)]; },
               [&](size_t i) { return expected.dx_magnitude[row(i)]; }});
  ExpectClose(inputs, result, Role::kDweight, Output::kDParameter,
              {&expected.dweight, Magnitude(expected.dweight_magnitude)});
  ExpectClose(inputs, result, Role::kDbias, Output::kDParameter,
              {&expected.dbias, Magnitude(expected.dbias_magnitude)});
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
  ExpectClose(inputs, result, Role::kY, Output::kY, {&expected.y, Magnitude(expected.y_magnitude)});
  ExpectClose(inputs, result, Role::kMean, Output::kMean,
              {&expected.mean, MeanScale(expected.mean, expected.rstd)});
  ExpectClose(inputs, result, Role::kRstd, Output::kRstd,
              {&expected.rstd, Magnitude(expected.rstd)});
  const auto moved = [](const Values& before, const Values& after) {
    return [&](size_t i) { return std::fabs(before[i]) + std::fabs(after[i]); };
  };
  ExpectClose(inputs, result, Role::kRunningMean, Output::kRunning,
              {&expected.new_running_mean, moved(oracle.running_mean, expected.new_running_mean)});
  ExpectClose(inputs, result, Role::kRunningVar, Output::kRunning,
              {&expected.new_running_var, moved(oracle.running_var, expected.new_running_var)});
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
  const auto channel = [&](size_t i) {
    return static_cast<size_t>(oracle.shape.Channel(static_cast<int64_t>(i)));
  };
  const Values largest =
      GroupMaxima(expected.dx, static_cast<size_t>(oracle.shape.channels), channel);
  ExpectClose(inputs, result, Role::kDx, Output::kDx,
              {&expected.dx, [&](size_t i) { return largest[channel(i)]; },
               [&](size_t i) { return expected.dx_magnitude[channel(i)]; }});
  ExpectClose(inputs, result, Role::kDweight, Output::kDParameter,
              {&expected.dweight, Magnitude(expected.dweight_magnitude)});
  ExpectClose(inputs, result, Role::kDbias, Output::kDParameter,
              {&expected.dbias, Magnitude(expected.dbias_magnitude)});
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

void ExpectSameBits(const ProblemInputs& inputs, const server::JobResult& one,
                    const server::JobResult& other) {
  const NormProblem& problem = inputs.problem;
  ASSERT_TRUE(one.status.ok()) << one.status;
  ASSERT_TRUE(other.status.ok()) << other.status;
  for (size_t i = 0; i < server::kTensorRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if (problem.outputs.Has(role)) {
      EXPECT_EQ(OutputBytes(one, role), OutputBytes(other, role))
          << OpName(problem.op) << " " << DirectionName(problem.direction) << " " << problem.rows
          << "x" << problem.hidden_size << " " << TensorRoleName(role);
    }
  }
}

std::string OutputBytes(const server::JobResult& result, TensorRole role) {
  const server::OutputTensor& output = result.outputs[static_cast<size_t>(role)];
  return std::string(reinterpret_cast<const char*>(output.data),
                     static_cast<size_t>(output.size_bytes));
}

}  // namespace norm::test
