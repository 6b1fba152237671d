// Rows of several tensors on their way through shared memory: a ring of stages, each holding the
// same chunk of every tensor, filled ahead of its use. sm_90 and later: bulk copies by one thread,
// completing on an mbarrier. sm_80: 16-byte asynchronous copies by all threads. Before: plain
// copies. A chunk is copied as the aligned 16-byte pieces that cover it, so it may start anywhere;
// pieces that reach past a tensor's ends are replaced by single elements (FillEdges).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/segments.cuh"
#include "row_norm/row_norm_backward_device.h"

namespace norm_device {

inline constexpr int kPieceBytes = 16;
inline constexpr int kMaxRingTensors = 3;
inline constexpr int kMaxRingStages = 8;

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// The request that a block works for, and which of its blocks it is.
template <typename Params>
struct BlockOfRequest {
  const Params& params;
  int block;
};
template <typename Params>
__device__ BlockOfRequest<Params> FindRequest(const Params& launch) {
  return {launch, static_cast<int>(blockIdx.x)};
}
template <typename Params, int kCapacity>
__device__ BlockOfRequest<Params> FindRequest(const SegmentTable<Params, kCapacity>& launch) {
  const int block = static_cast<int>(blockIdx.x);
  const int segment = FindSegment(launch, block);
  return {launch.params[segment], block - launch.first_block[segment]};
}

/// Plain copies have no mbarrier: a full stage is one that a barrier of the group followed.
__device__ constexpr bool NeedsBarrierWhenFull() {
#if __CUDA_ARCH__ >= 800
  return false;
#else
  return true;
#endif
}

/// An mbarrier in shared memory. Nothing before sm_80.
class StageBarrier {
 public:
  __device__ void Init(int arrivals) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(&state_)), "r"(arrivals)
                 : "memory");
#endif
  }
  /// Before other threads, other blocks of the cluster and bulk copies may use it.
  static __device__ void FenceInit() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
#if __CUDA_ARCH__ >= 900
  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&state_))
                 : "memory");
  }
  __device__ void ArriveExpecting(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&state_)),
        "r"(bytes)
        : "memory");
  }
#endif
  /// Returns when the phase of this parity has completed.
  __device__ void Wait(uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred complete;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
          "selp.u32 %0, 1, 0, complete;\n}"
          : "=r"(done)
          : "r"(SharedAddress(&state_)), "r"(parity)
          : "memory");
    } while (done == 0);
#elif __CUDA_ARCH__ >= 800
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred complete;\n"
          "mbarrier.test_wait.parity.shared.b64 complete, [%1], %2;\n"
          "selp.u32 %0, 1, 0, complete;\n}"
          : "=r"(done)
          : "r"(SharedAddress(&state_)), "r"(parity)
          : "memory");
    } while (done == 0);
#endif
  }
  __device__ uint64_t* state() { return &state_; }

 private:
  uint64_t state_;
};

/// The same bytes of each tensor.
struct RingChunk {
  int64_t offset;
  int bytes;
};

/// The 16-byte pieces of a chunk that lie wholly inside the tensor.
struct ChunkPieces {
  __device__ ChunkPieces(const void* tensor, int64_t tensor_size, const RingChunk& chunk) {
    constexpr uintptr_t kMask = kPieceBytes - 1;
    const auto* tensor_begin = static_cast<const char*>(tensor);
    first = tensor_begin + chunk.offset;
    last = first + chunk.bytes;
    const uintptr_t down = reinterpret_cast<uintptr_t>(first) & ~kMask;
    shift = static_cast<int>(reinterpret_cast<uintptr_t>(first) - down);
    begin = reinterpret_cast<const char*>(down);
    if (begin < tensor_begin) begin += kPieceBytes;
    end = reinterpret_cast<const char*>((reinterpret_cast<uintptr_t>(last) + kMask) & ~kMask);
    if (end > tensor_begin + tensor_size) end -= kPieceBytes;
  }
  __device__ int bytes() const { return end > begin ? static_cast<int>(end - begin) : 0; }
  __device__ bool complete() const { return begin <= first && end >= last; }

  const char* first;
  const char* last;
  const char* begin;
  const char* end;
  int shift;  // of the chunk's first byte in its place in the stage
};

/// The ring of one group of threads: a warp or a block.
struct Ring {
  char* data;  // [stages, tensors, tensor_bytes]
  StageBarrier* full;
  const RingBackwardParams& p;

  __device__ char* Place(int stage, int index) const {
    return data + (stage * p.ring_tensors + index) * p.tensor_bytes;
  }
  __device__ ChunkPieces Pieces(int index, const RingChunk& chunk) const {
    return ChunkPieces(p.tensors[index], p.tensor_size, chunk);
  }
  /// Where the chunk of one tensor begins. kAligned: at the beginning of its place.
  template <bool kAligned>
  __device__ char* Chunk(int stage, int index, int64_t offset) const {
    if (kAligned) return Place(stage, index);
    const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.tensors[index])) +
                         static_cast<uint32_t>(offset);
    return Place(stage, index) + address % kPieceBytes;
  }

  /// One thread, before a barrier of the group.
  __device__ void Init(int group_threads) const {
#pragma unroll 1
    for (int stage = 0; stage < p.stages; ++stage) {
#if __CUDA_ARCH__ >= 900
      full[stage].Init(p.ring_tensors + 1);
#else
      full[stage].Init(group_threads);
#endif
    }
    StageBarrier::FenceInit();
  }

  /// Starts to fill a stage that nobody reads any more; `fill_values(stage)`, one thread's, copies
  /// more along with it. Called by all threads of the group. sm_90: each tensor is the work of a
  /// thread of its own, in a warp of its own where there are enough.
  template <bool kAligned, typename FillValues>
  __device__ void Fill(int stage, const RingChunk& chunk, int thread, int group_threads,
                       FillValues&& fill_values) const {
#if __CUDA_ARCH__ >= 900
    constexpr int kWarpThreads = 32;
    const int stride = group_threads > kMaxRingTensors * kWarpThreads ? kWarpThreads : 1;
    const int index = thread / stride;
    if (thread % stride != 0 || index > p.ring_tensors) return;
    if (index == p.ring_tensors) {
      fill_values(stage);
      ArriveWhenCopied(stage);
      return;
    }
    const char* from;
    char* place = Place(stage, index);
    int bytes = chunk.bytes;
    if (kAligned) {
      from = static_cast<const char*>(p.tensors[index]) + chunk.offset;
    } else {
      const ChunkPieces pieces = Pieces(index, chunk);
      from = pieces.begin;
      place += pieces.begin - pieces.first + pieces.shift;
      bytes = pieces.bytes();
    }
    full[stage].ArriveExpecting(bytes);
    if (bytes == 0) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(SharedAddress(place)),
        "l"(from), "r"(bytes), "r"(SharedAddress(full[stage].state()))
        : "memory");
#else
#pragma unroll 1
    for (int i = 0; i < p.ring_tensors; ++i) {
      const ChunkPieces pieces = Pieces(i, chunk);
      char* place = Place(stage, i) + (pieces.begin - pieces.first + pieces.shift);
      const int bytes = pieces.bytes();
#pragma unroll 1
      for (int at = thread * kPieceBytes; at < bytes; at += group_threads * kPieceBytes) {
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(place + at)),
                     "l"(pieces.begin + at)
                     : "memory");
#else
        *reinterpret_cast<uint4*>(place + at) = *reinterpret_cast<const uint4*>(pieces.begin + at);
#endif
      }
    }
    if (thread == 0) fill_values(stage);
    ArriveWhenCopied(stage);
#endif
  }

  /// One thread, before a barrier of the group: Init for stages that FillByOne fills.
  __device__ void InitForOne(int group_threads) const {
#pragma unroll 1
    for (int stage = 0; stage < p.stages; ++stage) {
#if __CUDA_ARCH__ >= 900
      constexpr int kCopies = 2;  // of tensors, of values
      full[stage].Init(kCopies);
#else
      full[stage].Init(group_threads);
#endif
    }
    StageBarrier::FenceInit();
  }

  /// Fill, on sm_90 all of it by the thread that `fills`.
  template <bool kAligned, typename FillValues>
  __device__ void FillByOne(int stage, const RingChunk& chunk, bool fills, int thread,
                            int group_threads, FillValues&& fill_values) const {
#if __CUDA_ARCH__ >= 900
    if (!fills) return;
    StageBarrier& barrier = full[stage];
    // Before the rows, which would keep them waiting.
    fill_values(stage);
    ArriveWhenCopied(stage);
    if (kAligned) {
      barrier.ArriveExpecting(chunk.bytes * p.ring_tensors);
      const uint32_t place = SharedAddress(Place(stage, 0));
#pragma unroll
      for (int i = 0; i < kMaxRingTensors; ++i) {
        if (i < p.ring_tensors) {
          BulkCopy(place + i * p.tensor_bytes,
                   static_cast<const char*>(p.tensors[i]) + chunk.offset, chunk.bytes, barrier);
        }
      }
    } else {
      int bytes = 0;
#pragma unroll 1
      for (int i = 0; i < p.ring_tensors; ++i) bytes += Pieces(i, chunk).bytes();
      barrier.ArriveExpecting(bytes);
#pragma unroll 1
      for (int i = 0; i < p.ring_tensors; ++i) {
        const ChunkPieces pieces = Pieces(i, chunk);
        if (pieces.bytes() == 0) continue;
        BulkCopy(SharedAddress(Place(stage, i) + (pieces.begin - pieces.first + pieces.shift)),
                 pieces.begin, pieces.bytes(), barrier);
      }
    }
#else
    Fill<kAligned>(stage, chunk, thread, group_threads, fill_values);
#endif
  }

  /// Copies one value along with a stage.
  __device__ static void FillValue(float* place, const float* source) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(place)), "l"(source)
                 : "memory");
#else
    *place = *source;
#endif
  }

  /// Whether pieces were left out. The same answer for all threads of the group.
  __device__ bool HasEdges(const RingChunk& chunk) const {
    bool complete = true;
#pragma unroll 1
    for (int i = 0; i < p.ring_tensors; ++i) complete &= Pieces(i, chunk).complete();
    return !complete;
  }

  /// Copies the elements outside the pieces. Called by all threads of the group after the stage is
  /// full, and before a barrier of the group.
  template <typename Element>
  __device__ void FillEdges(int stage, const RingChunk& chunk, int thread,
                            int group_threads) const {
#pragma unroll 1
    for (int i = 0; i < p.ring_tensors; ++i) {
      const ChunkPieces pieces = Pieces(i, chunk);
      const auto* source = reinterpret_cast<const Element*>(pieces.first);
      auto* place = reinterpret_cast<Element*>(Place(stage, i) + pieces.shift);
      const int elements = chunk.bytes / static_cast<int>(sizeof(Element));
#pragma unroll 1
      for (int e = thread; e < elements; e += group_threads) {
        const auto* address = reinterpret_cast<const char*>(source + e);
        if (address < pieces.begin || address >= pieces.end) place[e] = source[e];
      }
    }
#if __CUDA_ARCH__ >= 900
    // Later bulk copies write the same places.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

 private:
#if __CUDA_ARCH__ >= 900
  __device__ static void BulkCopy(uint32_t place, const char* from, int bytes,
                                  StageBarrier& barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(place),
        "l"(from), "r"(bytes), "r"(SharedAddress(barrier.state()))
        : "memory");
  }
#endif
  /// When what this thread began with cp.async has arrived.
  __device__ void ArriveWhenCopied(int stage) const {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(full[stage].state()))
        : "memory");
#endif
  }
};

}  // namespace norm_device
