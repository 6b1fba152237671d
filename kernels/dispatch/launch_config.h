// How a kernel is launched, and the device facts that decide it: plain values, free of the CUDA
// runtime.
#pragma once

#include <cstdint>

namespace norm::internal {

/// Grid, block and what else a launch may ask for.
struct LaunchConfig {
  int64_t blocks_x = 1;  // at most kMaxBlocksX; a multiple of cluster_blocks
  int64_t blocks_y = 1;  // at most kMaxBlocksY
  int threads_x = 1;
  int threads_y = 1;
  int cluster_blocks = 1;  // along x; more than 1 needs DeviceTraits::HasClusters
  /// A cluster even of one block, for kernels whose instructions address their cluster: st.async is an
  /// illegal instruction in a launch without clusters.
  bool needs_cluster = false;
  int64_t dynamic_shared_bytes = 0;  // at most DeviceTraits::max_shared_bytes
  bool cooperative = false;          // refused unless all blocks are resident at once
  /// The kernel may start while the launch before it on the stream still runs (programmatic
  /// dependent launch); it must wait with griddepcontrol.wait before its first dependent access.
  /// Only where HasClusters.
  bool overlaps_previous = false;

  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;
};

inline constexpr int64_t kMaxBlocksX = 0x7fffffff;
inline constexpr int64_t kMaxBlocksY = 65535;

/// What launch configurations depend on besides the problem.
struct DeviceTraits {
  int sm_count = 1;
  int compute_capability = 0;    // major * 10 + minor
  int64_t max_shared_bytes = 0;  // dynamic shared memory that one block may ask for
  int64_t l2_bytes = 0;

  /// Thread-block clusters, bulk copies and dependent launches.
  constexpr bool HasClusters() const { return compute_capability >= 90; }
};

}  // namespace norm::internal
