// How a kernel is launched, and the device facts that decide it: plain values, free of the CUDA
// runtime.
#pragma once

#include <cstdint>

namespace norm::internal {

/// Grid and block. Shared memory is static in every kernel here.
struct LaunchConfig {
  int64_t blocks_x = 1;  // at most kMaxBlocksX
  int64_t blocks_y = 1;  // at most kMaxBlocksY
  int threads_x = 1;
  int threads_y = 1;

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

inline constexpr int64_t kMaxBlocksX = 0x7fffffff;
inline constexpr int64_t kMaxBlocksY = 65535;

/// What launch configurations depend on besides the problem.
struct DeviceTraits {
  int sm_count = 1;
};

}  // namespace norm::internal
