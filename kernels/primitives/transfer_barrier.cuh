// Data on its way into shared memory: barriers that count bytes, bulk copies that report to them,
// and values sent to the other blocks of a cluster. Compute capability 9.0; below, the functions do
// nothing and no kernel that needs them is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "primitives/packed_granule.cuh"

namespace norm_device {

/// What threads do with an mbarrier at a shared address; see TransferBarrier.
__device__ inline void ArriveAtBarrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ inline void WaitForBarrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t over;
  do {
    asm volatile(
        "{\n.reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (over == 0);
#endif
}

/// An mbarrier. Its phases alternate in parity, beginning with 0.
class TransferBarrier {
 public:
  /// By one thread; FenceInit and a barrier of all users follow.
  __device__ void Init(int arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()), "r"(arrivals)
                 : "memory");
#endif
  }
  static __device__ void FenceInit() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void Arrive() { ArriveAtBarrier(Address()); }
  /// The phase also waits for `bytes` more bytes.
  __device__ void ArriveExpecting(int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
#endif
  }
  /// Returns when the phase of this parity is over, with what bulk copies, the block's threads and
  /// SendToPeer wrote before visible. (A wait with the cluster's scope would also drop the
  /// first-level cache.)
  __device__ void Wait(uint32_t parity) { WaitForBarrier(Address(), parity); }
  __device__ uint32_t Address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state_));
  }

 private:
  uint64_t state_;
};

/// Starts a copy of `bytes` bytes to the shared address `destination`; both places and the size are
/// multiples of 16.
__device__ inline void StartBulkCopy(uint32_t destination, const void* source, int bytes,
                                     const TransferBarrier& barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier.Address())
      : "memory");
#endif
}

/// Orders this thread's accesses to shared memory, barriers included, before bulk copies.
__device__ inline void FenceBeforeBulkCopies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Stores at the place that `own` has in this block's shared memory, in block `peer` of the cluster
/// (this one included), and reports 8 bytes to the barrier at the place of `own_barrier` there.
__device__ inline void SendToPeer(const void* own, const TransferBarrier& own_barrier, int peer,
                                  uint64_t value) {
#if __CUDA_ARCH__ >= 900
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t place;
  uint32_t barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(address), "r"(peer));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(barrier)
      : "r"(own_barrier.Address()), "r"(peer));
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(place),
      "l"(value), "r"(barrier)
      : "memory");
#endif
}

/// This cluster, and how many there are, along x.
__device__ inline int ClusterIndex() {
  uint32_t index = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
  return static_cast<int>(index);
}
__device__ inline int ClusterCount() {
  uint32_t count = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
#endif
  return static_cast<int>(count);
}

/// Dynamic shared memory of this block.
__device__ inline uint32_t DynamicSharedBytes() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

/// A 16-byte granule at a shared address.
template <typename Tag, int V>
__device__ PackedGranule<Tag, V> LoadShared(uint32_t address) {
  static_assert(PackedGranule<Tag, V>::kBytes == 16);
  PackedGranule<Tag, V> granule;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(granule.words[0]), "=r"(granule.words[1]), "=r"(granule.words[2]),
                 "=r"(granule.words[3])
               : "r"(address)
               : "memory");
  return granule;
}

template <typename Tag, int V>
__device__ void StoreShared(uint32_t address, const PackedGranule<Tag, V>& granule) {
  static_assert(PackedGranule<Tag, V>::kBytes == 16);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(granule.words[0]),
               "r"(granule.words[1]), "r"(granule.words[2]), "r"(granule.words[3])
               : "memory");
}

}  // namespace norm_device
