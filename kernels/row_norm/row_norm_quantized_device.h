// What host code and the kernels of quantized row norms agree on. Standard library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Who owns a row: lanes of a warp, or a block, which longer rows divide in other ways.
enum class QuantizedRowMethod : uint8_t {
  kLanes8,
  kLanes16,
  kWarp,
  kBlock,
  kWideBlock,
  kLongBlock
};

inline constexpr int kQuantizedLaneThreads = 64;  // of a block whose warps own rows
inline constexpr int kMaxQuantizedBlockThreads = 512;

/// Whether there are kernels of a method. Elements have `bytes` bytes.
constexpr bool QuantizedMethodServes(QuantizedRowMethod method, RowKind kind, int bytes) {
  return method <= QuantizedRowMethod::kBlock || (kind == RowKind::kLayer && bytes == 2);
}
/// Longest rows of kBlock and of kWideBlock where these serve.
inline constexpr int kMaxQuantizedBlockRow = 4096;
inline constexpr int kMaxQuantizedWideRow = 8192;

/// Elements of a row that a thread holds. LayerNorm has two exchanges a row: in the longest, fewer
/// threads of more elements meet in them.
constexpr int QuantizedRowElements(QuantizedRowMethod method) {
  return method == QuantizedRowMethod::kLongBlock ? 64 : 32;
}

/// Registers of a thread, a multiple of 8: few, without spilling, or so few that another block fits.
constexpr int QuantizedRowRegisters(QuantizedRowMethod method, RowKind kind, int bytes) {
  if (method == QuantizedRowMethod::kLongBlock) return 128;
  if (kind == RowKind::kLayer && bytes == 2) {
    return method == QuantizedRowMethod::kBlock ? 88 : 80;
  }
  if (kind == RowKind::kLayer) return 96;
  return bytes == 2 ? 64 : 72;
}

/// Kernels as the runtime launches them, with RowForwardParams whose output is not kInputType: rows
/// of whole 16-byte granules of x, up to what the threads of a method hold. X of 4 or 2 bytes.
template <typename Pair>
const void* QuantizedRowKernel(RowKind kind, QuantizedRowMethod method);

}  // namespace norm_device
