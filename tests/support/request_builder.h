// Requests as a client would build them with plain protobuf, for tests of decoder and server.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "norm/v1/normalization.pb.h"

namespace norm::test {

/// A tensor with `bytes` as they are.
inline norm::v1::Tensor RawTensor(norm::v1::DType dtype, const std::vector<int64_t>& shape,
                                  std::string bytes) {
  norm::v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t dimension : shape) tensor.add_shape(dimension);
  tensor.set_data(std::move(bytes));
  return tensor;
}

inline norm::v1::Tensor F32Tensor(const std::vector<int64_t>& shape,
                                  const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return RawTensor(norm::v1::DTYPE_F32, shape, std::move(bytes));
}

/// f32 zeros.
inline norm::v1::Tensor Zeros(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t dimension : shape) elements *= dimension;
  return F32Tensor(shape, std::vector<float>(static_cast<size_t>(elements)));
}

inline std::vector<float> F32Values(const norm::v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

/// The canary: RMSNorm of [1, 2, 3, 4] with weight 1 and eps 1e-6; see CanaryValues.
inline norm::v1::NormalizeRequest CanaryRequest() {
  norm::v1::NormalizeRequest request;
  request.mutable_rms_norm()->set_eps(1e-6);
  *request.mutable_x() = F32Tensor({1, 4}, {1, 2, 3, 4});
  *request.mutable_weight() = F32Tensor({4}, {1, 1, 1, 1});
  return request;
}

/// x / sqrt(7.5 + 1e-6), to eight digits.
inline std::vector<float> CanaryValues() {
  return {0.36514835F, 0.73029670F, 1.0954450F, 1.4605934F};
}

}  // namespace norm::test
