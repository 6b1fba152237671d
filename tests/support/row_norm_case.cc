#include "tests/support/row_norm_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/host_tensor.h"
#include "tests/support/quantized_output.h"
#include "tests/support/tolerance.h"

namespace norm::testing {
namespace {

reference::RowKind KindOf(Op op) {
  return op == Op::kRmsNorm ? reference::RowKind::kRms : reference::RowKind::kLayer;
}

reference::RowNormResult Reference(const RowForwardCase& problem) {
  reference::RowNormProblem reference;
  reference.kind = KindOf(problem.op);
  reference.rows = problem.rows;
  reference.hidden_size = problem.hidden_size;
  reference.eps = problem.eps;
  reference.weight_offset = problem.weight_offset;
  reference.format = FormatOf(problem.dtypes.dtype);
  reference.rounding = problem.rounding == Rounding::kOnce
                           ? reference::RowRounding::kNone
                           : reference::RowRounding::kNormalizedFirst;
  reference.x = problem.x;
  reference.residual = problem.residual;
  reference.weight = problem.weight;
  reference.bias = problem.bias;
  return reference::RowNormForward(reference);
}

/// The largest finite |value| of each row.
std::vector<double> RowMaxima(const std::vector<double>& values, int64_t rows, int64_t columns) {
  std::vector<double> maxima(static_cast<size_t>(rows));
  for (size_t i = 0; i < values.size(); ++i) {
    double& maximum = maxima[i / static_cast<size_t>(columns)];
    if (std::isfinite(values[i])) {
      maximum = std::max(maximum, std::fabs(values[i]));
    }
  }
  return maxima;
}

/// Statistics of rows that hold an infinity or NaN: only that the row shows it (y is compared
/// element by element).
void IgnoreNonFiniteRows(const std::vector<double>& x, int64_t hidden_size,
                         std::vector<double>& reference, std::vector<double>& got) {
  for (size_t row = 0; row < reference.size(); ++row) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row) * hidden_size;
    if (std::any_of(begin, begin + hidden_size, [](double v) { return !std::isfinite(v); })) {
      reference[row] = 0.0;
      got[row] = 0.0;
    }
  }
}

}  // namespace

std::string DTypePairName(DTypePair pair) {
  const auto name = [](DType dtype) {
    std::string upper = DTypeName(dtype);
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    return upper;
  };
  return pair.dtype == pair.weight_dtype ? name(pair.dtype)
                                         : name(pair.dtype) + "Weight" + name(pair.weight_dtype);
}

RowForwardOutputs RunCase(NormRunner& runner, const RowForwardCase& problem, Placement placement) {
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  const InputTensor x(dtype, problem.x);
  const InputTensor residual(dtype, problem.residual);
  const InputTensor weight(problem.dtypes.weight_dtype, problem.weight);
  const InputTensor bias(problem.dtypes.weight_dtype, problem.bias);
  const int64_t elements = problem.rows * problem.hidden_size;
  const bool quantizes = problem.output_format != OutputFormat::kSameAsInput;
  RowForwardOutputs out;
  out.y.assign(static_cast<size_t>(elements) * (quantizes ? 1 : DTypeSize(dtype)), std::byte{0x5A});
  out.rstd = OutputBytes(statistics, problem.rows);
  const auto fill = [&](auto& args) {
    args.x = x.data();
    args.residual = residual.data();
    args.weight = weight.data();
    args.y = out.y.data();
    if (args.residual != nullptr) {
      out.residual_sum = OutputBytes(dtype, elements);
      args.residual_sum = out.residual_sum.data();
    }
    args.rstd = out.rstd.data();
    if (HasRowScale(problem.output_format)) {
      out.row_scale = OutputBytes(DType::kF32, problem.rows);
      args.row_scale = out.row_scale.data();
    }
    args.rows = problem.rows;
    args.hidden_size = problem.hidden_size;
    args.dtype = dtype;
    args.weight_dtype = problem.dtypes.weight_dtype;
    args.eps = problem.eps;
    args.rounding = problem.rounding;
    args.output_format = problem.output_format;
    args.y_scale = problem.y_scale;
  };
  if (problem.op == Op::kRmsNorm) {
    RmsNormForwardArgs args;
    fill(args);
    args.weight_offset = problem.weight_offset;
    out.status = runner.Run(args, placement);
  } else {
    out.mean = OutputBytes(statistics, problem.rows);
    LayerNormForwardArgs args;
    fill(args);
    args.bias = bias.data();
    args.mean = out.mean.data();
    out.status = runner.Run(args, placement);
  }
  return out;
}

void RunAndCheck(NormRunner& runner, const RowForwardCase& problem, Placement placement) {
  const RowForwardOutputs out = RunCase(runner, problem, placement);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  reference::RowNormResult want = Reference(problem);
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  if (!problem.residual.empty()) {
    EXPECT_EQ(out.residual_sum, ToBytes(dtype, want.residual_sum)) << "residual_sum";
  }
  if (problem.output_format != OutputFormat::kSameAsInput) {
    EXPECT_TRUE(MatchesQuantized(problem, want, out)) << "quantized y";
  } else {
    const Output y_rule = problem.rounding == Rounding::kOnce ? Output::kY : Output::kYRoundedFirst;
    EXPECT_TRUE(Matches(y_rule, dtype, ToValues(dtype, out.y),
                        {&want.y, [&](size_t i) { return want.y_magnitude[i]; }}))
        << "y";
  }

  const std::vector<double>& s = problem.residual.empty() ? problem.x : want.residual_sum;
  std::vector<double> rstd = ToValues(statistics, out.rstd);
  IgnoreNonFiniteRows(s, problem.hidden_size, want.rstd, rstd);
  EXPECT_TRUE(Matches(Output::kRstd, statistics, rstd,
                      {&want.rstd, [&](size_t i) { return want.rstd[i]; }}))
      << "rstd";
  if (problem.op == Op::kLayerNorm) {
    std::vector<double> mean = ToValues(statistics, out.mean);
    IgnoreNonFiniteRows(s, problem.hidden_size, want.mean, mean);
    const std::vector<double> largest = RowMaxima(s, problem.rows, problem.hidden_size);
    EXPECT_TRUE(Matches(Output::kMean, statistics, mean,
                        {&want.mean, [&](size_t i) { return largest[i]; }}))
        << "mean";
  }
}

RowBackwardOutputs RunCase(NormRunner& runner, const RowBackwardCase& problem,
                           Placement placement) {
  const DType dtype = problem.dtypes.dtype;
  const DType statistics = StatisticsDType(dtype);
  const InputTensor dy(dtype, problem.dy);
  const InputTensor x(dtype, problem.x);
  const InputTensor weight(problem.dtypes.weight_dtype, problem.weight);
  const InputTensor dresidual_sum(dtype, problem.dresidual_sum);
  std::vector<double> given_mean;
  std::vector<double> given_rstd;
  if (problem.statistics == SavedStatistics::kGiven) {
    RowForwardCase forward;
    forward.op = problem.op;
    forward.rows = problem.rows;
    forward.hidden_size = problem.hidden_size;
    forward.dtypes = problem.dtypes;
    forward.eps = problem.eps;
    forward.x = problem.x;
    const reference::RowNormResult result = Reference(forward);
    given_mean = result.mean;
    given_rstd = result.rstd;
  }
  const InputTensor mean(statistics, given_mean);
  const InputTensor rstd(statistics, given_rstd);

  RowBackwardOutputs out;
  out.dx = OutputBytes(dtype, problem.rows * problem.hidden_size);
  out.dweight = OutputBytes(problem.dtypes.weight_dtype, problem.hidden_size);
  const auto fill = [&](auto& args) {
    args.dy = dy.data();
    args.x = x.data();
    args.weight = weight.data();
    args.rstd = rstd.data();
    args.dresidual_sum = dresidual_sum.data();
    args.dx = out.dx.data();
    args.dweight = out.dweight.data();
    args.rows = problem.rows;
    args.hidden_size = problem.hidden_size;
    args.dtype = dtype;
    args.weight_dtype = problem.dtypes.weight_dtype;
    args.eps = problem.eps;
  };
  if (problem.op == Op::kRmsNorm) {
    RmsNormBackwardArgs args;
    fill(args);
    args.weight_offset = problem.weight_offset;
    out.status = runner.Run(args, placement);
  } else {
    out.dbias = OutputBytes(problem.dtypes.weight_dtype, problem.hidden_size);
    LayerNormBackwardArgs args;
    fill(args);
    args.mean = mean.data();
    args.dbias = out.dbias.data();
    out.status = runner.Run(args, placement);
  }
  return out;
}

void RunAndCheck(NormRunner& runner, const RowBackwardCase& problem, Placement placement) {
  const RowBackwardOutputs out = RunCase(runner, problem, placement);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  reference::RowNormGradientProblem reference;
  reference.kind = KindOf(problem.op);
  reference.rows = problem.rows;
  reference.hidden_size = problem.hidden_size;
  reference.eps = problem.eps;
  reference.weight_offset = problem.weight_offset;
  reference.dy = problem.dy;
  reference.x = problem.x;
  reference.weight = problem.weight;
  reference.dresidual_sum = problem.dresidual_sum;
  const reference::RowNormGradients want = reference::RowNormBackward(reference);

  const DType dtype = problem.dtypes.dtype;
  const DType weight_dtype = problem.dtypes.weight_dtype;
  const size_t columns = static_cast<size_t>(problem.hidden_size);
  const std::vector<double> largest = RowMaxima(want.dx, problem.rows, problem.hidden_size);
  EXPECT_TRUE(Matches(Output::kDx, dtype, ToValues(dtype, out.dx),
                      {&want.dx, [&](size_t i) { return largest[i / columns]; },
                       [&](size_t i) { return want.dx_magnitude[i / columns]; }}))
      << "dx";
  EXPECT_TRUE(Matches(Output::kDParameter, weight_dtype, ToValues(weight_dtype, out.dweight),
                      {&want.dweight, [&](size_t i) { return want.dweight_magnitude[i]; },
                       [&](size_t i) { return want.dbias_magnitude[i]; }}))
      << "dweight";
  if (problem.op == Op::kLayerNorm) {
    EXPECT_TRUE(Matches(Output::kDParameter, weight_dtype, ToValues(weight_dtype, out.dbias),
                        {&want.dbias, [&](size_t i) { return want.dbias_magnitude[i]; }}))
        << "dbias";
  }
}

}  // namespace norm::testing
