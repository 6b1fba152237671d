// Turns a runtime dtype into an element type, once per call. Only supported pairs are instantiated.
#pragma once

#include <type_traits>

#include "cpu/element.h"
#include "norm/kernels/dtype.h"

namespace norm::internal {

template <typename T>
struct ElementTag {
  using Type = T;
};

/// Element type of mean, rstd and running statistics for activations of type T.
template <typename T>
using StatisticsOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls visitor(ElementTag<T>) with the element type of `dtype`.
template <typename Visitor>
void VisitDType(DType dtype, const Visitor& visitor) {
  switch (dtype) {
    case DType::kF32:
      return visitor(ElementTag<float>());
    case DType::kF16:
      return visitor(ElementTag<Half>());
    case DType::kBF16:
      return visitor(ElementTag<BFloat16>());
    case DType::kF64:
      return visitor(ElementTag<double>());
  }
}

/// Calls visitor(ElementTag<T>, ElementTag<W>) for a pair that IsSupportedWeightDType accepts.
template <typename Visitor>
void VisitDTypePair(DType dtype, DType weight_dtype, const Visitor& visitor) {
  VisitDType(dtype, [&](auto tag) {
    if (weight_dtype == dtype) {
      visitor(tag, tag);
    } else if constexpr (!std::is_same_v<typename decltype(tag)::Type, float>) {
      visitor(tag, ElementTag<float>());
    }
  });
}

}  // namespace norm::internal
