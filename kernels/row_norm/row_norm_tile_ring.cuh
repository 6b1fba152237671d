// Tiles of consecutive rows of any length and alignment on their way through shared memory, as the
// aligned 16-byte pieces that cover them. sm_90 and later: bulk copies. sm_80: asynchronous copies
// in, plain stores out. Before: plain copies.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_strip_device.h"

namespace norm_device {

/// Tiles of up to three tensors on their way in, and of up to two on their way out from the places
/// of the first two, by one warp: a ring of stages. Every tensor has a thread of its own, which
/// starts its copies.
class TileRing {
 public:
  struct Shape {
    int stages;
    int tensors;
    int tensor_bytes;  // of a tensor's place in a stage
  };
  /// The same bytes of every tensor.
  struct Tile {
    int64_t offset;
    int bytes;  // at least kMinTileBytes
  };
  static constexpr int kMinTileBytes = 32;

  /// `data`: at a multiple of kTileLineBytes, like tensor_bytes. `tensor_size`: of each, in bytes. `has_edges`: some
  /// tensor begins or ends inside 16 bytes.
  __device__ TileRing(char* data, StageBarrier* full, const Shape& shape, int64_t tensor_size,
                      bool has_edges)
      : data_(data),
        full_(full),
        shape_(shape),
        tensor_size_(tensor_size),
        has_edges_(has_edges),
        lane_(static_cast<int>(threadIdx.x) % kLanes) {}

  __device__ void Init() const {
    if (lane_ == 0) {
#pragma unroll 1
      for (int stage = 0; stage < shape_.stages; ++stage) {
#if __CUDA_ARCH__ >= 900
        full_[stage].Init(shape_.tensors);
#else
        full_[stage].Init(kLanes);
#endif
      }
      StageBarrier::FenceInit();
    }
  }

  /// Where a tile of tensor `index` begins in its stage.
  __device__ char* Place(int stage, int index, const void* tensor, const Tile& tile) const {
    return Place(stage, index) +
           Misalignment<kTileLineBytes>(static_cast<const char*>(tensor) + tile.offset);
  }

  /// Starts to fill a stage. `tensor_of(index)`: where it begins.
  template <typename TensorOf>
  __device__ void Fill(int stage, const Tile& tile, TensorOf&& tensor_of) const {
#if __CUDA_ARCH__ >= 900
    if (lane_ >= shape_.tensors) return;
    const Pieces pieces = PiecesOf(static_cast<const char*>(tensor_of(lane_)), tile);
    full_[stage].ArriveExpecting(pieces.bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(SharedAddress(Place(stage, lane_) + pieces.skipped)),
        "l"(pieces.begin), "r"(pieces.bytes), "r"(SharedAddress(full_[stage].state()))
        : "memory");
#else
#pragma unroll 1
    for (int index = 0; index < shape_.tensors; ++index) {
      const Pieces pieces = PiecesOf(static_cast<const char*>(tensor_of(index)), tile);
      char* place = Place(stage, index) + pieces.skipped;
#pragma unroll 1
      for (int at = lane_ * kPieceBytes; at < pieces.bytes; at += kLanes * kPieceBytes) {
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(place + at)),
                     "l"(pieces.begin + at)
                     : "memory");
#else
        *reinterpret_cast<uint4*>(place + at) = *reinterpret_cast<const uint4*>(pieces.begin + at);
#endif
      }
    }
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(full_[stage].state()))
        : "memory");
#endif
#endif
  }

  /// Returns when the stage is full, all of it where NeedsFinish() is false.
  __device__ void Wait(int stage, uint32_t parity) const { full_[stage].Wait(parity); }
  __device__ bool NeedsFinish() const { return NeedsBarrierWhenFull() || has_edges_; }
  /// Copies what Fill left out; after Wait, before a barrier of all who read the stage.
  template <typename Element, typename TensorOf>
  __device__ void Finish(int stage, const Tile& tile, TensorOf&& tensor_of) const {
#pragma unroll 1
    for (int index = 0; index < shape_.tensors; ++index) {
      const auto* tensor = static_cast<const char*>(tensor_of(index));
      const Pieces pieces = PiecesOf(tensor, tile);
      const char* first = tensor + tile.offset;
      const int before = max(static_cast<int>(pieces.begin - first), 0);
      const int after = min(static_cast<int>(pieces.begin - first) + pieces.bytes, tile.bytes);
      CopyElements<Element>(first, Place(stage, index, tensor, tile), 0, before);
      CopyElements<Element>(first, Place(stage, index, tensor, tile), after, tile.bytes);
    }
    FenceBeforeStore();  // later bulk copies write the same places
  }

  /// Starts to store a tile from `source` in shared memory to `to`; after FenceBeforeStore by those
  /// who wrote it and a barrier. The thread of tensor `index` awaits it.
  template <typename Element>
  __device__ void Store(const char* source, char* to, int bytes, int index) const {
    const int misaligned = Misalignment<kPieceBytes>(to);
    if (misaligned != static_cast<int>(SharedAddress(source) % kPieceBytes)) {
      CopyElements<Element>(source, to, 0, bytes);
      return;
    }
    const int before = -misaligned & (kPieceBytes - 1);
    const int after = (misaligned + bytes) & (kPieceBytes - 1);
    const int inner = bytes - before - after;
#if __CUDA_ARCH__ >= 900
    if (lane_ == index) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + before),
                   "r"(SharedAddress(source) + before), "r"(inner)
                   : "memory");
    }
#else
#pragma unroll 1
    for (int at = before + lane_ * kPieceBytes; at < before + inner; at += kLanes * kPieceBytes) {
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(source + at);
    }
#endif
    // Fewer than 8 elements each, the first by the first lanes, the last by those 16 later.
    constexpr int kSize = static_cast<int>(sizeof(Element));
    if ((before | after) != 0) {
      const int edge = lane_ % 16 * kSize;
      if (edge < (lane_ < 16 ? before : after)) {
        const int at = lane_ < 16 ? edge : bytes - after + edge;
        *reinterpret_cast<Element*>(to + at) = *reinterpret_cast<const Element*>(source + at);
      }
    }
  }
  /// Makes this thread's accesses to shared memory visible to Store.
  __device__ static void FenceBeforeStore() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
  /// Ends what one thread stores of a tile.
  __device__ static void CommitStores() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
  }
  /// Returns when all but the last kTiles tiles that this thread stored have left shared memory.
  template <int kTiles>
  __device__ static void AwaitStores() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kTiles) : "memory");
#endif
  }

 private:
  static constexpr int kLanes = 32;

  /// The aligned pieces that cover a tile, without those that reach past the tensor's ends.
  struct Pieces {
    const char* begin;
    int bytes;
    int skipped;  // of the place in the stage
  };

  template <int kBytes>
  __device__ static int Misalignment(const void* address) {
    return static_cast<int>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kBytes);
  }
  __device__ Pieces PiecesOf(const char* tensor, const Tile& tile) const {
    const char* first = tensor + tile.offset;
    const int misaligned = Misalignment<kPieceBytes>(first);
    Pieces pieces = {first - misaligned, (misaligned + tile.bytes + kPieceBytes - 1) & -kPieceBytes,
                     Misalignment<kTileLineBytes>(first) - misaligned};
    if (has_edges_) {
      if (pieces.begin < tensor) {
        pieces.begin += kPieceBytes;
        pieces.bytes -= kPieceBytes;
        pieces.skipped += kPieceBytes;
      }
      if (pieces.begin + pieces.bytes > tensor + tensor_size_) pieces.bytes -= kPieceBytes;
    }
    return pieces;
  }
  __device__ char* Place(int stage, int index) const {
    return data_ + (stage * shape_.tensors + index) * shape_.tensor_bytes;
  }
  template <typename Element>
  __device__ void CopyElements(const char* from, char* to, int begin, int end) const {
    constexpr int kSize = static_cast<int>(sizeof(Element));
#pragma unroll 1
    for (int at = begin + lane_ * kSize; at < end; at += kLanes * kSize) {
      *reinterpret_cast<Element*>(to + at) = *reinterpret_cast<const Element*>(from + at);
    }
  }

  char* data_;
  StageBarrier* full_;
  Shape shape_;
  int64_t tensor_size_;
  bool has_edges_;
  int lane_;
};

}  // namespace norm_device
