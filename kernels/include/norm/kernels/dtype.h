// Element types of tensors. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace norm {

enum class DType : uint8_t { kF32, kF16, kBF16, kF64 };
inline constexpr int kDTypeCount = 4;

/// Bytes per element.
constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF64:
      return 8;
  }
  return 0;
}

/// "f32", "f16", "bf16", "f64".
constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "f64";
  }
  return "unknown";
}

/// The dtype of saved and running statistics for activations of `dtype`: f32, or f64 for f64.
constexpr DType StatisticsDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// Weight and bias are in the dtype of x or in f32.
constexpr bool IsSupportedWeightDType(DType dtype, DType weight_dtype) {
  return weight_dtype == dtype || weight_dtype == DType::kF32;
}

}  // namespace norm
