// Host bytes of tensors around a kernel call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "norm/kernels/dtype.h"
#include "tests/support/tensor_data.h"

namespace norm::testing {

/// An input's bytes; its address is null when the tensor is absent.
class InputTensor {
 public:
  InputTensor(DType dtype, const std::vector<double>& values) : bytes_(ToBytes(dtype, values)) {}
  const void* data() const { return bytes_.empty() ? nullptr : bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

/// Bytes for an output, filled with a pattern that no result has.
inline std::vector<std::byte> OutputBytes(DType dtype, int64_t elements) {
  return std::vector<std::byte>(static_cast<size_t>(elements) * DTypeSize(dtype), std::byte{0x5A});
}

}  // namespace norm::testing
