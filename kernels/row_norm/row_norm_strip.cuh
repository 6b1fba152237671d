// Rows of any length and alignment in shared memory: a lane of a row holds a strip, consecutive
// elements at whatever address they have there. Strips are an odd number of 32-bit words long, so
// that lanes side by side meet different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// kWords words of elements, two 16-bit ones to a word.
template <typename X, int kStripWords>
struct Strip {
  static_assert(kStripWords % 2 == 1 && sizeof(StorageOf<X>) <= 4);
  static constexpr int kWords = kStripWords;
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(StorageOf<X>));
  static constexpr int kElements = kWords * kPerWord;

  uint32_t words[kWords];

  __device__ float Wide(int i) const { return WordCodec<X>::Widen(words, i); }

  /// From shared memory; reads up to a word more than the strip.
  __device__ void Load(const char* place) {
    const uint32_t address = SharedAddress(place);
    if constexpr (kPerWord == 1) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = LoadWord(address + 4 * i);
    } else {
      const uint32_t shift = (address & 2U) * 8;
      const uint32_t from = address & ~3U;
      uint32_t word = LoadWord(from);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint32_t next = LoadWord(from + 4 * (i + 1));
        words[i] = __funnelshift_r(word, next, shift);
        word = next;
      }
    }
  }

  /// To shared memory, and nothing beside it.
  __device__ void Store(char* place) const {
    const uint32_t address = SharedAddress(place);
    if (kPerWord == 1 || address % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) StoreWord(address + 4 * i, words[i]);
    } else {
      StoreHalf(address, words[0]);
#pragma unroll
      for (int i = 0; i + 1 < kWords; ++i) {
        StoreWord(address + 4 * i + 2, __funnelshift_r(words[i], words[i + 1], 16));
      }
      StoreHalf(address + 4 * kWords - 2, words[kWords - 1] >> 16);
    }
  }

  __device__ void Forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i]));
  }

 private:
  __device__ static uint32_t LoadWord(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
  }
  __device__ static void StoreWord(uint32_t address, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
  }
  __device__ static void StoreHalf(uint32_t address, uint32_t word) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(word))
                 : "memory");
  }
};

/// How a row is dealt out: whole strips to the first lanes, the elements after them one by one to
/// lanes in turn.
template <typename X, int kLanes, int kStripWords>
struct StripMap {
  static constexpr int kElements = Strip<X, kStripWords>::kElements;
  /// Elements after the strips that a lane has, at most.
  static constexpr int kMaxExtras = (kElements + kLanes - 2) / kLanes;
  static constexpr int kMaxHidden = kLanes * kElements + kElements - 1;

  int strips;
  int extras;       // of the first lane
  int first_extra;  // column of this lane's first
  int lane_extras;  // of this lane
  bool holds;       // whether this lane has a strip

  __device__ StripMap(int hidden_size, int lane)
      : strips(min(hidden_size / kElements, kLanes)), holds(lane < strips) {
    const int left = hidden_size - strips * kElements;
    extras = (left + kLanes - 1) / kLanes;
    first_extra = strips * kElements + lane;
    lane_extras = (left - lane + kLanes - 1) / kLanes;
  }
};

/// store(i, load(i)) for all columns, by the threads of a block, several loads under way at once.
template <typename Load, typename Store>
__device__ void ForEachColumn(int columns, Load&& load, Store&& store) {
  constexpr int kTogether = 8;
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < columns; first += kTogether * threads) {
    decltype(load(0)) values[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) values[i] = load(min(first + i * threads, columns - 1));
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * threads < columns) store(first + i * threads, values[i]);
    }
  }
}

}  // namespace norm_device
