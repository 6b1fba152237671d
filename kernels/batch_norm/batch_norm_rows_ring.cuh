// Channel-last BatchNorm on sm_90: a ring of chunks in shared memory that one warp fills by bulk
// copies. Nothing here may be called on older devices.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "batch_norm/batch_norm_rows_device.h"
#include "batch_norm/batch_norm_rows_quad.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void InitBarrier(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
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

/// Copies a box of the tensor to shared memory; the barrier counts its bytes. What lies outside of
/// the tensor is zero.
__device__ inline void BulkCopy(void* destination, const RowsTensorMap& map, int channel, int row,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(destination)),
      "l"(&map), "r"(channel), "r"(row), "r"(SharedAddress(barrier))
      : "memory");
}

/// Roles of a block's warps.
enum class RowsRole : uint8_t { kSum, kWrite, kFill, kSpread, kGather };
inline constexpr int kRowsGatherWarps = 2;

__device__ inline RowsRole RoleOfWarp() {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  constexpr int kWarps = kRowsThreads / kWarpThreads;
  if (warp < kWarps) return RowsRole::kSum;
  if (warp < 2 * kWarps) return RowsRole::kWrite;
  const int rest = warp - 2 * kWarps;
  return rest == 0 ? RowsRole::kFill : rest == 1 ? RowsRole::kSpread : RowsRole::kGather;
}

/// Of the summing threads.
__device__ inline void SyncSumming() {
  asm volatile("bar.sync 1, %0;" ::"n"(kRowsThreads) : "memory");
}

/// Where a block and its threads stand.
struct RowsPlace {
  int first_chunk;
  int chunks;
  int kept;    // of the chunks, the last
  int column;  // granule of the slice
  int lane;    // row of a step
  int lanes;

  __device__ explicit RowsPlace(const RowsGrid& grid) {
    const int64_t block = blockIdx.x;
    first_chunk = static_cast<int>(grid.chunks * block / gridDim.x);
    chunks = static_cast<int>(grid.chunks * (block + 1) / gridDim.x) - first_chunk;
    kept = min(chunks, grid.kept);
    const int columns = grid.slice_channels / kRowsGranule;
    const int thread = static_cast<int>(threadIdx.x) % kRowsThreads;
    column = thread % columns;
    lane = thread / columns;
    lanes = kRowsThreads / columns;
  }
};

/// A place in the ring. Chunks take the stages in turn.
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

/// The order of chunks in the ring: item by item; those of an item that are not kept come again,
/// from the last to the first, between the first chunks of the next item. Calls first(item, chunk)
/// and again(item, chunk) for every place in turn.
template <typename First, typename Again>
__device__ void ForEachChunk(int items, int chunks, int kept, First&& first, Again&& again) {
  const int lost = chunks - kept;
  for (int item = 0; item <= items; ++item) {
    const int end = item < items ? chunks : lost;
    for (int chunk = 0; chunk < end; ++chunk) {
      if (item < items) first(item, chunk);
      if (item > 0 && chunk < lost) again(item - 1, lost - 1 - chunk);
    }
  }
}

/// The block's shared memory.
template <typename X, int kTensors>
struct RowsShared {
  static constexpr int kUnroll = RowsUnroll(kTensors, sizeof(StorageOf<X>));
  static constexpr int kChunkBytes = RowsChunkBytes(kTensors, sizeof(StorageOf<X>));
  static constexpr int kWarps = kRowsThreads / kWarpThreads;
  uint64_t* full;
  uint64_t* empty;
  uint64_t* ready;          // [kRowsCoefficientBuffers]
  uint64_t* free;           // [kRowsCoefficientBuffers]
  volatile int* published;  // items whose sums this block has published
  double2* sums;            // [kTensors][rows][channels of the slice]
  float* coefficients;      // [kRowsCoefficientBuffers][kRowsCoefficients][channels]
  unsigned char* ring;

  __device__ RowsShared(unsigned char* shared, const RowsGrid& grid)
      : full(reinterpret_cast<uint64_t*>(shared)),
        empty(full + kRowsMaxStages),
        ready(empty + kRowsMaxStages),
        free(ready + kRowsCoefficientBuffers),
        published(reinterpret_cast<volatile int*>(free + kRowsCoefficientBuffers)),
        sums(reinterpret_cast<double2*>(shared + kRowsBarrierBytes)),
        coefficients(reinterpret_cast<float*>(shared + grid.coefficients_offset)),
        ring(shared + grid.ring_offset) {}

  __device__ void Init(int stages) const {
    for (int stage = 0; stage < stages; ++stage) {
      InitBarrier(&full[stage], 1);
      InitBarrier(&empty[stage], 2 * kWarps);
    }
    for (int i = 0; i < kRowsCoefficientBuffers; ++i) {
      InitBarrier(&ready[i], 1);
      InitBarrier(&free[i], kWarps);
    }
    *published = 0;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ const QuadOf<X>* Chunk(int stage, int tensor) const {
    return reinterpret_cast<const QuadOf<X>*>(ring + (stage * kTensors + tensor) * kChunkBytes);
  }
  __device__ float* Coefficients(int item, int slice_channels) const {
    return coefficients + item % kRowsCoefficientBuffers * kRowsCoefficients * slice_channels;
  }
};

/// Waits until the block's own sums of an item are published: before that, asking for those of all
/// blocks would only be in the way of other traffic.
template <typename Shared>
__device__ void AwaitPublished(const Shared& shared, int item) {
  constexpr unsigned kNanoseconds = 100;
  while (*shared.published <= item) __nanosleep(kNanoseconds);
}

/// One arrival for a warp whose lanes are all done with what came before.
__device__ inline void ArriveWarp(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % kWarpThreads == 0) Arrive(barrier);
}

/// Summing and writing warps both pass every place of the ring, so that none misses a phase of its
/// barriers: this is the one that has no use for the chunk.
template <typename Shared>
__device__ void SkipChunk(const Shared& shared, RingCursor& cursor, int stages) {
  Wait(&shared.full[cursor.stage], cursor.parity);
  ArriveWarp(&shared.empty[cursor.stage]);
  cursor.Next(stages);
}

/// The filling warp: every chunk in the ring's order. kBulk: by bulk copies; otherwise the others
/// read global memory themselves. No more than `flight` chunks are under way: every further one
/// would only delay what the blocks tell each other. `begun` is called after the first `head`.
template <typename X, int kTensors, bool kBulk, typename Begun>
__device__ void FillRing(const RowsGrid& grid, const RowsPlace& place,
                         const RowsShared<X, kTensors>& shared,
                         const RowsTensorMap* const (&maps)[kTensors], Begun&& begun) {
  using Shared = RowsShared<X, kTensors>;
  RingCursor cursor;
  RingCursor landed;
  int fills = 0;
  const auto fill = [&](int item, int chunk) {
    if (fills++ == grid.head) begun();
    if (fills > grid.flight) {
      Wait(&shared.full[landed.stage], landed.parity);
      landed.Next(grid.stages);
    }
    Wait(&shared.empty[cursor.stage], cursor.parity ^ 1U);
    if (threadIdx.x % kWarpThreads == 0) {
      uint64_t* full = &shared.full[cursor.stage];
      if (kBulk) {
        ArriveExpecting(full, kTensors * Shared::kChunkBytes);
#pragma unroll
        for (int k = 0; k < kTensors; ++k) {
          BulkCopy(shared.ring + (cursor.stage * kTensors + k) * Shared::kChunkBytes, *maps[k],
                   item * grid.slice_channels, (place.first_chunk + chunk) * grid.chunk_rows, full);
        }
      } else {
        Arrive(full);
      }
    }
    __syncwarp();
    cursor.Next(grid.stages);
  };
  ForEachChunk(grid.items, place.chunks, place.kept, fill, fill);
  if (fills <= grid.head) begun();
}

}  // namespace norm_device
