// Which segment of a SegmentTable a block works for.
#pragma once

#include <cuda_runtime.h>

#include "dispatch/segment_table.h"

namespace norm_device {

/// The segment that owns `block`: binary search, the same for all threads of the block.
template <typename Params, int kCapacity>
__device__ int FindSegment(const SegmentTable<Params, kCapacity>& table, int block) {
  int low = 0;
  int high = table.segments;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (block < table.first_block[middle]) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return low;
}

}  // namespace norm_device
