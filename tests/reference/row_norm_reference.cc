#include "tests/reference/row_norm_reference.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace norm::reference {
namespace {

using Real = long double;  // 64-bit significand: sums of 2^20 doubles keep double precision

struct RowMoments {
  Real mean;
  Real rstd;
};

RowMoments MomentsOf(RowKind kind, std::span<const double> x, double eps) {
  const Real count = static_cast<Real>(x.size());
  Real mean = 0;
  if (kind == RowKind::kLayer) {
    for (double value : x) {
      mean += value;
    }
    mean /= count;
    // What the rounding of a long sum left: large means of f64 data need it.
    Real left = 0;
    for (double value : x) {
      left += value - mean;
    }
    mean += left / count;
  }
  Real squares = 0;
  for (double value : x) {
    squares += (value - mean) * (value - mean);
  }
  return {mean, 1 / std::sqrt(squares / count + static_cast<Real>(eps))};
}

std::span<const double> Row(const std::vector<double>& tensor, int64_t row, int64_t hidden_size) {
  return std::span<const double>(tensor).subspan(static_cast<size_t>(row * hidden_size),
                                                 static_cast<size_t>(hidden_size));
}

}  // namespace

RowNormResult RowNormForward(const RowNormProblem& problem) {
  const size_t hidden_size = static_cast<size_t>(problem.hidden_size);
  RowNormResult result;
  if (!problem.residual.empty()) {
    result.residual_sum.resize(problem.x.size());
    for (size_t i = 0; i < problem.x.size(); ++i) {
      result.residual_sum[i] = RoundTo(problem.format, problem.x[i] + problem.residual[i]);
    }
  }
  const std::vector<double>& input = problem.residual.empty() ? problem.x : result.residual_sum;
  result.y.reserve(input.size());
  result.y_magnitude.reserve(input.size());
  for (int64_t row = 0; row < problem.rows; ++row) {
    const std::span<const double> s = Row(input, row, problem.hidden_size);
    const RowMoments moments = MomentsOf(problem.kind, s, problem.eps);
    result.mean.push_back(static_cast<double>(moments.mean));
    result.rstd.push_back(static_cast<double>(moments.rstd));
    for (size_t i = 0; i < hidden_size; ++i) {
      Real value = (s[i] - moments.mean) * moments.rstd;
      if (problem.rounding == RowRounding::kNormalizedFirst) {
        value = RoundTo(problem.format, static_cast<double>(value));
      }
      if (!problem.weight.empty()) {
        value *= static_cast<Real>(problem.weight[i]) + problem.weight_offset;
      }
      const Real bias = problem.bias.empty() ? 0.0 : problem.bias[i];
      result.y.push_back(static_cast<double>(value + bias));
      result.y_magnitude.push_back(static_cast<double>(std::fabs(value) + std::fabs(bias)));
    }
  }
  return result;
}

RowNormGradients RowNormBackward(const RowNormGradientProblem& problem) {
  const size_t hidden_size = static_cast<size_t>(problem.hidden_size);
  const Real count = static_cast<Real>(problem.hidden_size);
  std::vector<Real> dweight(hidden_size), dbias(hidden_size);
  std::vector<Real> dweight_magnitude(hidden_size), dbias_magnitude(hidden_size);
  std::vector<Real> h(hidden_size), g(hidden_size);
  RowNormGradients result;
  result.dx.reserve(problem.x.size());
  for (int64_t row = 0; row < problem.rows; ++row) {
    const std::span<const double> x = Row(problem.x, row, problem.hidden_size);
    const std::span<const double> dy = Row(problem.dy, row, problem.hidden_size);
    const RowMoments moments = MomentsOf(problem.kind, x, problem.eps);
    Real mean_g = 0;
    Real mean_gh = 0;
    Real largest_g = 0;
    for (size_t i = 0; i < hidden_size; ++i) {
      const Real weight = problem.weight.empty()
                              ? Real{1}
                              : static_cast<Real>(problem.weight[i]) + problem.weight_offset;
      h[i] = (x[i] - moments.mean) * moments.rstd;
      g[i] = dy[i] * weight;
      mean_g += g[i];
      mean_gh += g[i] * h[i];
      largest_g = std::max(largest_g, std::fabs(g[i]));
      dweight[i] += dy[i] * h[i];
      dweight_magnitude[i] += std::fabs(dy[i] * h[i]);
      dbias[i] += dy[i];
      dbias_magnitude[i] += std::fabs(static_cast<Real>(dy[i]));
    }
    mean_g = problem.kind == RowKind::kLayer ? mean_g / count : Real{0};
    mean_gh /= count;
    Real largest_residual = 0;
    for (size_t i = 0; i < hidden_size; ++i) {
      Real dx = moments.rstd * (g[i] - mean_g - h[i] * mean_gh);
      if (!problem.dresidual_sum.empty()) {
        const Real residual = problem.dresidual_sum[static_cast<size_t>(row) * hidden_size + i];
        dx += residual;
        largest_residual = std::max(largest_residual, std::fabs(residual));
      }
      result.dx.push_back(static_cast<double>(dx));
    }
    result.dx_magnitude.push_back(static_cast<double>(moments.rstd * largest_g + largest_residual));
  }
  result.dweight.assign(dweight.begin(), dweight.end());
  result.dweight_magnitude.assign(dweight_magnitude.begin(), dweight_magnitude.end());
  result.dbias.assign(dbias.begin(), dbias.end());
  result.dbias_magnitude.assign(dbias_magnitude.begin(), dbias_magnitude.end());
  return result;
}

}  // namespace norm::reference
