// Thread-block clusters: rank, barrier and stores into a peer's shared memory. Compute capability
// 9.0; below, the functions do nothing and no kernel that needs them is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace norm_device {

__device__ inline int ClusterRank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

__device__ inline int ClusterBlocks() {
  uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return static_cast<int>(blocks);
}

/// Arrives at the cluster's barrier; writes before it, also to peers, are visible after ClusterWait.
__device__ inline void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ inline void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Stores at the place that `own` has in this block's shared memory, in block `peer` of the cluster.
__device__ inline void StoreToPeer(double* own, int peer, double value) {
#if __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(peer));
  asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(remote), "d"(value) : "memory");
#endif
}

}  // namespace norm_device
