// What the launching sides of forward and backward share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "row_norm/row_norm.h"
#include "row_norm/row_norm_device.h"

namespace norm::internal {

inline norm_device::RowKind DeviceKind(RowNormKind kind) {
  return kind == RowNormKind::kRms ? norm_device::RowKind::kRms : norm_device::RowKind::kLayer;
}

/// Whether every present tensor starts at a multiple of the widest access.
inline bool AllAligned(std::initializer_list<const void*> tensors) {
  constexpr uintptr_t kAccessBytes = 16;
  return std::all_of(tensors.begin(), tensors.end(), [](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % kAccessBytes == 0;
  });
}

}  // namespace norm::internal
