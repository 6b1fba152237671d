// Many requests in one launch: the arguments of each by value in the kernel's parameter, and which
// blocks belong to which. Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

/// Parameters of at most kCapacity requests ("segments"). Segment s owns the blocks
/// [first_block[s], first_block[s + 1]) of the grid; segments without blocks are left out.
template <typename Params, int kCapacity>
struct SegmentTable {
  static constexpr int kMaxSegments = kCapacity;
  int32_t segments = 0;
  int32_t first_block[kCapacity + 1] = {};
  Params params[kCapacity] = {};
};

/// What a kernel's parameter may hold on every supported architecture.
inline constexpr int kMaxKernelParameterBytes = 32764;

}  // namespace norm_device
