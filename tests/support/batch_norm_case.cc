#include "tests/support/batch_norm_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/reference/batch_norm_reference.h"
#include "tests/support/host_tensor.h"
#include "tests/support/tensor_data.h"
#include "tests/support/tolerance.h"

namespace norm::testing {
namespace {

int64_t Elements(const BatchNormShape& shape) {
  return shape.batch * shape.channels * shape.spatial;
}

reference::ChannelShape ReferenceShape(const BatchNormShape& shape) {
  return {shape.batch, shape.channels, shape.spatial,
          shape.layout == BatchNormLayout::kNchw ? reference::ChannelLayout::kNchw
                                                 : reference::ChannelLayout::kNhwc};
}

reference::StatisticsSource SourceOf(BatchNormMode mode) {
  return mode == BatchNormMode::kTraining ? reference::StatisticsSource::kBatch
                                          : reference::StatisticsSource::kRunning;
}

reference::BatchNormResult Reference(const BatchForwardCase& problem) {
  reference::BatchNormProblem reference;
  reference.shape = ReferenceShape(problem.shape);
  reference.statistics = SourceOf(problem.mode);
  reference.eps = problem.eps;
  reference.momentum = problem.momentum;
  reference.x = problem.x;
  reference.weight = problem.weight;
  reference.bias = problem.bias;
  reference.running_mean = problem.running_mean;
  reference.running_var = problem.running_var;
  return reference::BatchNormForward(reference);
}

std::vector<double> ChannelMaxima(const BatchNormShape& shape, const std::vector<double>& values) {
  std::vector<double> maxima(static_cast<size_t>(shape.channels));
  reference::ForEachElement(ReferenceShape(shape), [&](size_t i, size_t channel) {
    if (std::isfinite(values[i])) {
      maxima[channel] = std::max(maxima[channel], std::fabs(values[i]));
    }
  });
  return maxima;
}

}  // namespace

BatchForwardOutputs RunCase(NormRunner& runner, const BatchForwardCase& problem,
                            Placement placement) {
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  const int64_t channels = problem.shape.channels;
  const InputTensor x(dtype, problem.x);
  const InputTensor weight(problem.dtypes.weight_dtype, problem.weight);
  const InputTensor bias(problem.dtypes.weight_dtype, problem.bias);
  const InputTensor running_mean(statistics, problem.running_mean);
  const InputTensor running_var(statistics, problem.running_var);
  BatchForwardOutputs out;
  out.y = OutputBytes(dtype, Elements(problem.shape));
  out.rstd = OutputBytes(statistics, channels);
  BatchNormForwardArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.running_mean = running_mean.data();
  args.running_var = running_var.data();
  args.y = out.y.data();
  args.rstd = out.rstd.data();
  args.shape = problem.shape;
  args.mode = problem.mode;
  args.dtype = dtype;
  args.weight_dtype = problem.dtypes.weight_dtype;
  args.eps = problem.eps;
  args.momentum = problem.momentum;
  if (problem.mode == BatchNormMode::kTraining) {
    out.mean = OutputBytes(statistics, channels);
    args.mean = out.mean.data();
    if (!problem.running_mean.empty()) {
      out.new_running_mean = OutputBytes(statistics, channels);
      out.new_running_var = OutputBytes(statistics, channels);
      args.new_running_mean = out.new_running_mean.data();
      args.new_running_var = out.new_running_var.data();
    }
  }
  out.status = runner.Run(args, placement);
  return out;
}

void RunAndCheck(NormRunner& runner, const BatchForwardCase& problem, Placement placement) {
  const BatchForwardOutputs out = RunCase(runner, problem, placement);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  const reference::BatchNormResult want = Reference(problem);
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  EXPECT_TRUE(Matches(Output::kY, dtype, ToValues(dtype, out.y),
                      {&want.y, [&](size_t i) { return want.y_magnitude[i]; }}))
      << "y";
  EXPECT_TRUE(Matches(Output::kRstd, statistics, ToValues(statistics, out.rstd),
                      {&want.rstd, [&](size_t i) { return want.rstd[i]; }}))
      << "rstd";
  if (problem.mode == BatchNormMode::kInference) {
    return;
  }
  const std::vector<double> largest = ChannelMaxima(problem.shape, problem.x);
  EXPECT_TRUE(Matches(Output::kMean, statistics, ToValues(statistics, out.mean),
                      {&want.mean, [&](size_t i) { return largest[i]; }}))
      << "mean";
  if (problem.running_mean.empty()) {
    return;
  }
  const auto scale_of = [](const std::vector<double>& before, const std::vector<double>& after) {
    return [&](size_t i) { return std::fabs(before[i]) + std::fabs(after[i]); };
  };
  EXPECT_TRUE(Matches(Output::kRunning, statistics, ToValues(statistics, out.new_running_mean),
                      {&want.new_running_mean, scale_of(problem.running_mean, want.mean)}))
      << "new_running_mean";
  EXPECT_TRUE(Matches(Output::kRunning, statistics, ToValues(statistics, out.new_running_var),
                      {&want.new_running_var, scale_of(problem.running_var, want.new_running_var)}))
      << "new_running_var";
}

BatchBackwardOutputs RunCase(NormRunner& runner, const BatchBackwardCase& problem,
                             Placement placement) {
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  const InputTensor dy(dtype, problem.dy);
  const InputTensor x(dtype, problem.x);
  const InputTensor weight(problem.dtypes.weight_dtype, problem.weight);
  std::vector<double> given_mean = problem.running_mean;
  std::vector<double> given_rstd;
  if (problem.mode == BatchNormMode::kTraining && problem.statistics == SavedStatistics::kGiven) {
    BatchForwardCase forward;
    forward.shape = problem.shape;
    forward.eps = problem.eps;
    forward.x = problem.x;
    const reference::BatchNormResult result = Reference(forward);
    given_mean = result.mean;
    given_rstd = result.rstd;
  }
  const InputTensor mean(statistics, given_mean);
  const InputTensor rstd(statistics, given_rstd);
  const InputTensor running_var(statistics, problem.running_var);
  BatchBackwardOutputs out;
  out.dx = OutputBytes(dtype, Elements(problem.shape));
  if (!problem.only_dx) {
    out.dweight = OutputBytes(problem.dtypes.weight_dtype, problem.shape.channels);
    out.dbias = OutputBytes(problem.dtypes.weight_dtype, problem.shape.channels);
  }
  BatchNormBackwardArgs args;
  args.dy = dy.data();
  args.x = x.data();
  args.weight = weight.data();
  args.mean = mean.data();
  args.rstd = rstd.data();
  args.running_var = running_var.data();
  args.dx = out.dx.data();
  args.dweight = problem.only_dx ? nullptr : out.dweight.data();
  args.dbias = problem.only_dx ? nullptr : out.dbias.data();
  args.shape = problem.shape;
  args.mode = problem.mode;
  args.dtype = dtype;
  args.weight_dtype = problem.dtypes.weight_dtype;
  args.eps = problem.eps;
  out.status = runner.Run(args, placement);
  return out;
}

void RunAndCheck(NormRunner& runner, const BatchBackwardCase& problem, Placement placement) {
  const BatchBackwardOutputs out = RunCase(runner, problem, placement);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  reference::BatchNormGradientProblem reference;
  reference.shape = ReferenceShape(problem.shape);
  reference.statistics = SourceOf(problem.mode);
  reference.eps = problem.eps;
  reference.dy = problem.dy;
  reference.x = problem.x;
  reference.weight = problem.weight;
  reference.running_mean = problem.running_mean;
  reference.running_var = problem.running_var;
  const reference::BatchNormGradients want = reference::BatchNormBackward(reference);

  const DType dtype = problem.dtypes.dtype;
  const DType weight_dtype = problem.dtypes.weight_dtype;
  const std::vector<double> largest = ChannelMaxima(problem.shape, want.dx);
  const auto channel = [&](size_t i) {
    return static_cast<size_t>(reference.shape.Channel(static_cast<int64_t>(i)));
  };
  EXPECT_TRUE(Matches(Output::kDx, dtype, ToValues(dtype, out.dx),
                      {&want.dx, [&](size_t i) { return largest[channel(i)]; },
                       [&](size_t i) { return want.dx_magnitude[channel(i)]; }}))
      << "dx";
  if (problem.only_dx) return;
  EXPECT_TRUE(Matches(Output::kDParameter, weight_dtype, ToValues(weight_dtype, out.dweight),
                      {&want.dweight, [&](size_t i) { return want.dweight_magnitude[i]; },
                       [&](size_t i) { return want.dbias_magnitude[i]; }}))
      << "dweight";
  EXPECT_TRUE(Matches(Output::kDParameter, weight_dtype, ToValues(weight_dtype, out.dbias),
                      {&want.dbias, [&](size_t i) { return want.dbias_magnitude[i]; }}))
      << "dbias";
}

std::vector<double> ToOtherLayout(const BatchNormShape& shape, const std::vector<double>& values) {
  const size_t channels = static_cast<size_t>(shape.channels);
  const size_t spatial = static_cast<size_t>(shape.spatial);
  std::vector<double> other(values.size());
  for (size_t nchw = 0; nchw < values.size(); ++nchw) {
    const size_t batch = nchw / (channels * spatial);
    const size_t c = nchw / spatial % channels;
    const size_t s = nchw % spatial;
    const size_t nhwc = (batch * spatial + s) * channels + c;
    if (shape.layout == BatchNormLayout::kNchw) {
      other[nhwc] = values[nchw];
    } else {
      other[nchw] = values[nhwc];
    }
  }
  return other;
}

}  // namespace norm::testing
