#include "client/normctl/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace norm::normctl {
namespace {

using client::Tensor;

/// Explicit mantissa bits and the exponent of the smallest normal number.
struct Precision {
  int mantissa_bits;
  int min_exponent;
};

Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {23, -126};
    case DType::kF16:
      return {10, -14};
    case DType::kBF16:
      return {7, -126};
    case DType::kF64:
      break;
  }
  return {52, -1022};
}

double UnitInLastPlace(double value, const Precision& precision) {
  const double magnitude = std::fabs(value);
  const int exponent = magnitude == 0 ? precision.min_exponent
                                      : std::max(std::ilogb(magnitude), precision.min_exponent);
  return std::ldexp(1.0, exponent - precision.mantissa_bits);
}

/// The group (row or channel) of each element whose largest magnitude is its scale.
class Groups {
 public:
  Groups(const std::vector<int64_t>& shape, ToleranceScale scale, BatchNormLayout layout) {
    if (scale == ToleranceScale::kRow) {
      divisor_ = std::max<int64_t>(shape.back(), 1);
      return;
    }
    const size_t channel =
        layout == BatchNormLayout::kNchw && shape.size() > 1 ? 1 : shape.size() - 1;
    count_ = std::max<int64_t>(shape[channel], 1);
    for (size_t i = channel + 1; i < shape.size(); ++i) divisor_ *= std::max<int64_t>(shape[i], 1);
  }

  size_t Of(int64_t index) const { return static_cast<size_t>((index / divisor_) % count_); }

 private:
  int64_t divisor_ = 1;
  int64_t count_ = std::numeric_limits<int64_t>::max();
};

std::vector<double> GroupScales(const std::vector<double>& golden, const Groups& groups) {
  std::vector<double> largest;
  for (size_t i = 0; i < golden.size(); ++i) {
    const size_t group = groups.Of(static_cast<int64_t>(i));
    if (group >= largest.size()) largest.resize(group + 1, 0.0);
    if (std::isfinite(golden[i])) largest[group] = std::max(largest[group], std::fabs(golden[i]));
  }
  std::vector<double> scales(golden.size());
  for (size_t i = 0; i < golden.size(); ++i)
    scales[i] = largest[groups.Of(static_cast<int64_t>(i))];
  return scales;
}

absl::StatusOr<std::vector<double>> Scales(const std::vector<double>& golden,
                                           const std::vector<int64_t>& shape, ToleranceScale kind,
                                           const std::optional<Tensor>& given,
                                           BatchNormLayout layout) {
  if (kind == ToleranceScale::kRow || kind == ToleranceScale::kChannel) {
    return GroupScales(golden, Groups(shape, kind, layout));
  }
  if (kind != ToleranceScale::kTensor) {
    const double least = kind == ToleranceScale::kValue ? 1.0 : 0.0;
    std::vector<double> scales;
    scales.reserve(golden.size());
    for (double value : golden) scales.push_back(std::max(least, std::fabs(value)));
    return scales;
  }
  if (!given.has_value() || given->elements() != static_cast<int64_t>(golden.size())) {
    return absl::FailedPreconditionError(absl::StrCat("scale tensor of ",
                                                      given.has_value() ? given->elements() : 0,
                                                      " elements for a golden of ", golden.size()));
  }
  return client::ToDoubles(*given);
}

}  // namespace

absl::StatusOr<Comparison> Compare(const Tensor& result, const Tensor& golden,
                                   const Tolerance& tolerance, const std::optional<Tensor>& scale,
                                   BatchNormLayout layout) {
  if (result.dtype() != golden.dtype() || result.shape() != golden.shape()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "result is ", DTypeName(result.dtype()), " [", absl::StrJoin(result.shape(), ","),
        "], golden is ", DTypeName(golden.dtype()), " [", absl::StrJoin(golden.shape(), ","), "]"));
  }
  const std::vector<double> actual = client::ToDoubles(result);
  const std::vector<double> expected = client::ToDoubles(golden);
  absl::StatusOr<std::vector<double>> scales =
      Scales(expected, golden.shape(), tolerance.scale, scale, layout);
  if (!scales.ok()) return scales.status();
  const Precision precision = PrecisionOf(result.dtype());
  Comparison comparison;
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool equal =
        actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]));
    if (equal) continue;
    // NaN or infinity on one side only: no tolerance covers it.
    double error = HUGE_VAL;
    double share = HUGE_VAL;
    if (std::isfinite(actual[i]) && std::isfinite(expected[i])) {
      error = std::fabs(actual[i] - expected[i]);
      const double allowed = tolerance.relative * (*scales)[i] +
                             tolerance.ulps * UnitInLastPlace(expected[i], precision);
      if (allowed > 0) share = error / allowed;
    }
    comparison.max_error = std::max(comparison.max_error, error);
    comparison.max_used_share = std::max(comparison.max_used_share, share);
    if (share > 1.0 && comparison.mismatches++ == 0)
      comparison.first_mismatch = static_cast<int64_t>(i);
  }
  return comparison;
}

}  // namespace norm::normctl
