// What host code and the kernels of LayerNorm rows in a block agree on: how many rows a block of a
// plain request has, and what it has registers for. Standard library only.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_device.h"

namespace norm_device {

/// When weight and bias are fetched, two granules at a time.
enum class AffineFetch : uint8_t {
  kLate,     // when they are needed
  kEarly,    // the first ones with the row, the others when they are needed
  kRolling,  // the first ones with the row, then two granules ahead
};

/// A kernel of row_norm_forward_block.cuh. Its bits are those of any other.
struct BlockRows {
  int rows;     // of a block; 0: there is no such kernel
  int threads;  // of a block, at most
  int blocks;   // that must fit a multiprocessor
  AffineFetch fetch;
};

/// Of a plan's method and threads, for elements and weights of these bytes: what is fastest on an H200.
/// Two rows share weight and bias where registers for both leave enough blocks; the longest f32 rows
/// give up early ones for one more block.
constexpr BlockRows BlockRowsOf(RowMethod method, int bytes, int weight_bytes, int threads) {
  if (method == RowMethod::kBlock && bytes == 2) {
    if (weight_bytes == 2) return {1, 256, 4, AffineFetch::kEarly};
    return threads <= 128 ? BlockRows{2, 128, 4, AffineFetch::kEarly}
                          : BlockRows{2, 256, 3, AffineFetch::kLate};
  }
  if (method == RowMethod::kBlock && bytes == 4 && threads > 96) {
    if (threads <= 256) return {2, 256, 3, AffineFetch::kEarly};
    if (threads <= 320) return {2, 320, 2, AffineFetch::kEarly};
  }
  if (method == RowMethod::kBlockLong && bytes == 2 && weight_bytes == 2) {
    if (threads <= 192) return {1, 192, 4, AffineFetch::kEarly};
    if (threads <= 256) return {2, 256, 2, AffineFetch::kRolling};
  }
  if (method == RowMethod::kBlockLong && bytes == 4 && threads > 320 && threads <= 384) {
    return {1, 384, 3, AffineFetch::kLate};
  }
  return {0, 0, 0, AffineFetch::kLate};
}

/// LayerNorm of kPlain requests with weight and bias, for a plan's method and threads. Takes
/// RowForwardParams. Null where BlockRowsOf has none.
template <typename Pair>
const void* BlockRowsKernel(RowMethod method, int threads);

}  // namespace norm_device
