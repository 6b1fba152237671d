// A tensor as normbench's own kernels take it: the element type is a run-time value. Free of
// namespace norm, for .cu files.
#pragma once

#include <cstdint>

namespace norm_device {

enum class Element : int { kF32, kF16, kBF16, kF64, kF8E4M3, kInt8 };

struct AnyTensor {
  void* data = nullptr;
  Element element = Element::kF32;
};

}  // namespace norm_device
