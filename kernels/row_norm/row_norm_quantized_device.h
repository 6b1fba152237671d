// What host code and the kernels of quantized row norms agree on. Standard library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Who owns a row.
enum class QuantizedRowMethod : uint8_t { kLanes8, kLanes16, kWarp, kBlock };

inline constexpr int kQuantizedRowElements = 32;   // that a thread holds in registers
inline constexpr int kQuantizedLaneThreads = 128;  // of a block whose warps own rows
inline constexpr int kMaxQuantizedBlockThreads = 512;

/// Kernels as the runtime launches them, with RowForwardParams whose output is not kInputType: rows
/// of whole 16-byte granules of x, up to what the threads of a method hold. X of 4 or 2 bytes.
template <typename Pair>
const void* QuantizedRowKernel(RowKind kind, QuantizedRowMethod method);

}  // namespace norm_device
