// Channel-last BatchNorm on sm_90: barriers, bulk copies and stores with policies of L2. Nothing here
// may be called on older devices.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_device.h"
#include "batch_norm/batch_norm_rows_quad.cuh"

namespace norm_device {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void ArriveExpecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

/// Returns once the barrier's phase of this parity is complete.
__device__ inline void Wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

/// What L2 is asked to do with lines.
__device__ inline uint64_t KeepPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t PassPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Copies a box of the tensor to shared memory; the barrier counts its bytes. What lies outside of
/// the tensor is zero.
__device__ inline void BulkCopy(void* destination, const RowsTensorMap& map, int channel, int row,
                                uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(destination)),
      "l"(&map), "r"(channel), "r"(row), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}

__device__ inline void StoreRaw(void* to, const uint4& value, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "l"(policy)
               : "memory");
}
__device__ inline void StoreRaw(void* to, const uint2& value, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(value.x),
               "r"(value.y), "l"(policy)
               : "memory");
}
/// Stores four channels under a policy of L2.
template <typename Tag>
__device__ void StorePassing(StorageOf<Tag>* to, const QuadOf<Tag>& raw, bool wide,
                             uint64_t policy) {
  if (wide) {
    StoreRaw(to, raw, policy);
  } else {
    Quad<Tag>::StoreNarrow(to, raw);
  }
}

}  // namespace norm_device
