// The kernels' dtypes as the wire spells them, written apart from the server's own mapping.
#pragma once

#include "norm/kernels/dtype.h"
#include "norm/v1/tensor.pb.h"

namespace norm::test {

inline norm::v1::DType ToWire(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return norm::v1::DTYPE_F32;
    case DType::kF16:
      return norm::v1::DTYPE_F16;
    case DType::kBF16:
      return norm::v1::DTYPE_BF16;
    case DType::kF64:
      return norm::v1::DTYPE_F64;
  }
  return norm::v1::DTYPE_UNSPECIFIED;
}

}  // namespace norm::test
