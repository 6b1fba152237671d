#include "tests/reference/batch_norm_reference.h"

#include <algorithm>
#include <cmath>

namespace norm::reference {
namespace {

using Real = long double;

struct ChannelMoments {
  std::vector<Real> mean;
  std::vector<Real> var;  // biased

  std::vector<Real> Rstd(double eps) const {
    std::vector<Real> rstd;
    for (Real v : var) {
      rstd.push_back(1 / std::sqrt(v + static_cast<Real>(eps)));
    }
    return rstd;
  }
};

/// Zeros for an empty tensor.
ChannelMoments BatchMoments(const ChannelShape& shape, const std::vector<double>& x) {
  const size_t channels = static_cast<size_t>(shape.channels);
  ChannelMoments moments = {std::vector<Real>(channels), std::vector<Real>(channels)};
  if (x.empty()) {
    return moments;
  }
  const Real count = static_cast<Real>(shape.batch * shape.spatial);
  ForEachElement(shape, [&](size_t i, size_t c) { moments.mean[c] += x[i]; });
  for (Real& mean : moments.mean) {
    mean /= count;
  }
  // What the rounding of long sums left: large means of f64 data need it.
  std::vector<Real> left(channels);
  ForEachElement(shape, [&](size_t i, size_t c) { left[c] += x[i] - moments.mean[c]; });
  for (size_t c = 0; c < channels; ++c) {
    moments.mean[c] += left[c] / count;
  }
  ForEachElement(shape, [&](size_t i, size_t c) {
    moments.var[c] += (x[i] - moments.mean[c]) * (x[i] - moments.mean[c]);
  });
  for (Real& var : moments.var) {
    var /= count;
  }
  return moments;
}

ChannelMoments RunningMoments(const std::vector<double>& mean, const std::vector<double>& var) {
  return {std::vector<Real>(mean.begin(), mean.end()), std::vector<Real>(var.begin(), var.end())};
}

}  // namespace

BatchNormResult BatchNormForward(const BatchNormProblem& problem) {
  const ChannelShape& shape = problem.shape;
  const bool training = problem.statistics == StatisticsSource::kBatch;
  const ChannelMoments moments = training
                                     ? BatchMoments(shape, problem.x)
                                     : RunningMoments(problem.running_mean, problem.running_var);
  const std::vector<Real> rstd = moments.Rstd(problem.eps);
  BatchNormResult result;
  const Real count = static_cast<Real>(shape.batch * shape.spatial);
  for (size_t c = 0; c < static_cast<size_t>(shape.channels); ++c) {
    result.mean.push_back(static_cast<double>(moments.mean[c]));
    result.rstd.push_back(static_cast<double>(rstd[c]));
    if (!training || problem.running_mean.empty()) {
      continue;
    }
    if (problem.x.empty()) {
      result.new_running_mean.push_back(problem.running_mean[c]);
      result.new_running_var.push_back(problem.running_var[c]);
      continue;
    }
    const Real momentum = problem.momentum;
    const Real unbiased = moments.var[c] * count / (count - 1);
    result.new_running_mean.push_back(
        static_cast<double>((1 - momentum) * problem.running_mean[c] + momentum * moments.mean[c]));
    result.new_running_var.push_back(
        static_cast<double>((1 - momentum) * problem.running_var[c] + momentum * unbiased));
  }
  result.y.reserve(problem.x.size());
  result.y_magnitude.reserve(problem.x.size());
  ForEachElement(shape, [&](size_t i, size_t c) {
    Real value = (problem.x[i] - moments.mean[c]) * rstd[c];
    if (!problem.weight.empty()) {
      value *= problem.weight[c];
    }
    const Real bias = problem.bias.empty() ? 0.0 : problem.bias[c];
    result.y.push_back(static_cast<double>(value + bias));
    result.y_magnitude.push_back(static_cast<double>(std::fabs(value) + std::fabs(bias)));
  });
  return result;
}

BatchNormGradients BatchNormBackward(const BatchNormGradientProblem& problem) {
  const ChannelShape& shape = problem.shape;
  const size_t channels = static_cast<size_t>(shape.channels);
  const bool training = problem.statistics == StatisticsSource::kBatch;
  const ChannelMoments moments = training
                                     ? BatchMoments(shape, problem.x)
                                     : RunningMoments(problem.running_mean, problem.running_var);
  const std::vector<Real> rstd = moments.Rstd(problem.eps);
  const Real count = static_cast<Real>(shape.batch * shape.spatial);
  std::vector<Real> dweight(channels), dbias(channels);
  std::vector<Real> dweight_magnitude(channels), dbias_magnitude(channels), largest_dy(channels);
  const auto normalized = [&](size_t i, size_t c) {
    return (problem.x[i] - moments.mean[c]) * rstd[c];
  };
  ForEachElement(shape, [&](size_t i, size_t c) {
    const Real dy = problem.dy[i];
    const Real term = dy * normalized(i, c);
    dweight[c] += term;
    dweight_magnitude[c] += std::fabs(term);
    dbias[c] += dy;
    dbias_magnitude[c] += std::fabs(dy);
    largest_dy[c] = std::max(largest_dy[c], std::fabs(dy));
  });
  BatchNormGradients result;
  result.dx.reserve(problem.x.size());
  ForEachElement(shape, [&](size_t i, size_t c) {
    Real value = problem.dy[i];
    if (training) {
      value -= dbias[c] / count + normalized(i, c) * dweight[c] / count;
    }
    const Real weight = problem.weight.empty() ? 1.0 : problem.weight[c];
    result.dx.push_back(static_cast<double>(weight * rstd[c] * value));
  });
  for (size_t c = 0; c < channels; ++c) {
    const Real weight = problem.weight.empty() ? 1.0 : problem.weight[c];
    result.dx_magnitude.push_back(static_cast<double>(std::fabs(weight) * rstd[c] * largest_dy[c]));
  }
  result.dweight.assign(dweight.begin(), dweight.end());
  result.dweight_magnitude.assign(dweight_magnitude.begin(), dweight_magnitude.end());
  result.dbias.assign(dbias.begin(), dbias.end());
  result.dbias_magnitude.assign(dbias_magnitude.begin(), dbias_magnitude.end());
  return result;
}

}  // namespace norm::reference
