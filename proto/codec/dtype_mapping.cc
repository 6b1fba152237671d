#include "proto/codec/dtype_mapping.h"

namespace norm::wire {

std::optional<DType> FromProto(norm::v1::DType dtype) {
  switch (dtype) {
    case norm::v1::DTYPE_F32:
      return DType::kF32;
    case norm::v1::DTYPE_F16:
      return DType::kF16;
    case norm::v1::DTYPE_BF16:
      return DType::kBF16;
    case norm::v1::DTYPE_F64:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

norm::v1::DType ToProto(DType dtype) {
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

}  // namespace norm::wire
