// Values of tensors as the oracle takes them: rounded, in absolute terms, by groups.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "norm/kernels/dtype.h"
#include "norm/v1/normalization.pb.h"
#include "tests/integration/wire_dtype.h"
#include "tests/reference/element_codec.h"
#include "tests/support/tensor_data.h"

namespace norm::test {

inline void Fill(norm::v1::Tensor* tensor, DType dtype, const std::vector<int64_t>& shape,
                 const std::vector<double>& values) {
  tensor->set_dtype(ToWire(dtype));
  for (const int64_t dimension : shape) tensor->add_shape(dimension);
  const std::vector<std::byte> bytes = norm::testing::ToBytes(dtype, values);
  tensor->set_data(bytes.data(), bytes.size());
}

inline std::vector<double> Rounded(DType dtype, std::vector<double> values) {
  for (double& value : values)
    value = norm::reference::RoundTo(norm::testing::FormatOf(dtype), value);
  return values;
}

inline std::vector<double> Absolute(std::vector<double> values) {
  for (double& value : values) value = std::fabs(value);
  return values;
}

inline std::vector<double> AbsoluteSum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = std::fabs(a[i]) + std::fabs(b[i]);
  return sum;
}

/// Largest |value| of each group, spread over the members again.
template <typename GroupOf>
std::vector<double> GroupMaxima(const std::vector<double>& values, size_t groups, GroupOf group) {
  std::vector<double> maxima(groups);
  for (size_t i = 0; i < values.size(); ++i) {
    maxima[group(i)] = std::max(maxima[group(i)], std::fabs(values[i]));
  }
  return maxima;
}

template <typename GroupOf>
std::vector<double> Spread(const std::vector<double>& per_group, size_t count, GroupOf group) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = per_group[group(i)];
  return values;
}

}  // namespace norm::test
