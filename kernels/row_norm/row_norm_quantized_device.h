// What host code and the kernels of quantized row norms agree on. Standard library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Who owns a row.
enum class QuantizedRowMethod : uint8_t { kLanes8, kLanes16, kWarp, kBlock };

inline constexpr int kQuantizedLaneThreads = 64;  // of a block whose warps own rows
inline constexpr int kMaxQuantizedBlockThreads = 512;

/// Elements of a row that a thread holds, for elements of `bytes` bytes. LayerNorm has two exchanges
/// a row: fewer threads of more elements meet in them.
constexpr int QuantizedRowElements(QuantizedRowMethod method, RowKind kind, int bytes) {
  return method == QuantizedRowMethod::kBlock && kind == RowKind::kLayer && bytes == 2 ? 64 : 32;
}

/// Registers of a thread, a multiple of 8: few, without spilling.
constexpr int QuantizedRowRegisters(QuantizedRowMethod method, RowKind kind, int bytes) {
  if (QuantizedRowElements(method, kind, bytes) == 64) return 128;
  if (kind == RowKind::kLayer) return bytes == 2 ? 80 : 96;
  return bytes == 2 ? 64 : 72;
}

/// Kernels as the runtime launches them, with RowForwardParams whose output is not kInputType: rows
/// of whole 16-byte granules of x, up to what the threads of a method hold. X of 4 or 2 bytes.
template <typename Pair>
const void* QuantizedRowKernel(RowKind kind, QuantizedRowMethod method);

}  // namespace norm_device
