// Runtime dtypes become types here, once, over explicit lists: an unsupported pair cannot be
// instantiated.
#pragma once

#include "norm/kernels/dtype.h"
#include "primitives/element_types.h"

namespace norm::internal {

/// Returns visitor(ElementPair<X, W>{}) for the supported pair. Callers have validated: other pairs
/// do not come here.
template <typename Visitor>
auto VisitElementPair(DType dtype, DType weight_dtype, Visitor&& visitor) {
  using norm_device::BF16;
  using norm_device::ElementPair;
  using norm_device::F16;
  using norm_device::F32;
  using norm_device::F64;
  const bool same = dtype == weight_dtype;
  switch (dtype) {
    case DType::kF16:
      return same ? visitor(ElementPair<F16, F16>{}) : visitor(ElementPair<F16, F32>{});
    case DType::kBF16:
      return same ? visitor(ElementPair<BF16, BF16>{}) : visitor(ElementPair<BF16, F32>{});
    case DType::kF64:
      return same ? visitor(ElementPair<F64, F64>{}) : visitor(ElementPair<F64, F32>{});
    case DType::kF32:
      break;
  }
  return visitor(ElementPair<F32, F32>{});
}

/// Returns visitor(tag) for one dtype.
template <typename Visitor>
auto VisitElement(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF16:
      return visitor(norm_device::F16{});
    case DType::kBF16:
      return visitor(norm_device::BF16{});
    case DType::kF64:
      return visitor(norm_device::F64{});
    case DType::kF32:
      break;
  }
  return visitor(norm_device::F32{});
}

}  // namespace norm::internal
