// Scale and bias of strips (row_norm_strip.cuh).
#pragma once

#include <cstdint>

#include "primitives/element_access.cuh"
#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_affine.cuh"
#include "row_norm/row_norm_strip.cuh"

namespace norm_device {

/// Scale and bias of all columns in shared memory: of a word's elements the scales, then the biases.
template <typename X, RowKind kKind, int kWords>
class StripAffine {
 public:
  using S = Strip<X, kWords>;

  __device__ explicit StripAffine(char* table) : table_(table) {}

  /// By all threads of a block, whose barrier follows.
  __device__ void Load(const RowForwardParams& p) const {
    if (p.weight_is_f32) {
      LoadAs<F32>(p);
    } else {
      LoadAs<X>(p);
    }
  }

  /// y of one element.
  __device__ PackedGranule<X, 1> ApplyOne(const RowNormalizer<kKind, X>& normalize,
                                          bool round_first, int column,
                                          const PackedGranule<X, 1>& x) const {
    const auto* entry = reinterpret_cast<const float*>(table_) + column / S::kPerWord * kEntry +
                        column % S::kPerWord;
    float y[1] = {normalize(x.Wide(0))};
    if (round_first) y[0] = PackedGranule<X, 1>::Rounded(y).Wide(0);
    y[0] = kKind == RowKind::kLayer ? fmaf(y[0], entry[0], entry[S::kPerWord]) : y[0] * entry[0];
    return PackedGranule<X, 1>::Rounded(y);
  }

  /// y of a strip that begins at element kElements * lane, rounded into its place.
  __device__ void Apply(const RowNormalizer<kKind, X>& normalize, bool round_first, int lane,
                        S& strip) const {
    const uint32_t entry = SharedAddress(table_) + lane * (kWords * kEntry * 4);
    if (round_first) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) ApplyWord<true>(normalize, entry + i * kEntry * 4, i, strip);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        ApplyWord<false>(normalize, entry + i * kEntry * 4, i, strip);
    }
  }

 private:
  static constexpr int kEntry = S::kPerWord * (kKind == RowKind::kLayer ? 2 : 1);

  template <typename W>
  __device__ void LoadAs(const RowForwardParams& p) const {
    const auto* weight = static_cast<const StorageOf<W>*>(p.weight);
    const auto* bias = static_cast<const StorageOf<W>*>(p.bias);
    const auto load = [&](int column) {
      const bool has_bias = kKind == RowKind::kLayer && bias != nullptr;
      return float2{weight == nullptr ? 1.0F : Element<W>::Widen(__ldg(weight + column)),
                    has_bias ? Element<W>::Widen(__ldg(bias + column)) : 0.0F};
    };
    const auto offset = static_cast<float>(p.weight_offset);
    ForEachColumn(static_cast<int>(p.hidden_size), load, [&](int column, float2 values) {
      auto* entry =
          reinterpret_cast<float*>(table_) + column / S::kPerWord * kEntry + column % S::kPerWord;
      entry[0] = kKind == RowKind::kRms ? values.x + offset : values.x;
      if (kKind == RowKind::kLayer) entry[S::kPerWord] = values.y;
    });
  }

  __device__ static void LoadEntry(uint32_t address, float (&entry)[1]) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(entry[0]) : "r"(address));
  }
  __device__ static void LoadEntry(uint32_t address, float (&entry)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(entry[0]), "=f"(entry[1])
                 : "r"(address));
  }
  __device__ static void LoadEntry(uint32_t address, float (&entry)[4]) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(entry[0]), "=f"(entry[1]), "=f"(entry[2]), "=f"(entry[3])
                 : "r"(address));
  }

  template <bool kRoundFirst>
  __device__ void ApplyWord(const RowNormalizer<kKind, X>& normalize, uint32_t address, int word,
                            S& strip) const {
    constexpr int kPerWord = S::kPerWord;
    float entry[kEntry];
    LoadEntry(address, entry);
    float y[kPerWord];
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) y[i] = normalize(strip.Wide(word * kPerWord + i));
    if (kRoundFirst) {
      uint32_t rounded[1];
      WordCodec<X>::template Narrow<kPerWord>(y, rounded);
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) y[i] = WordCodec<X>::Widen(rounded, i);
    }
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      y[i] = kKind == RowKind::kLayer ? fmaf(y[i], entry[i], entry[kPerWord + i]) : y[i] * entry[i];
    }
    uint32_t packed[1];
    WordCodec<X>::template Narrow<kPerWord>(y, packed);
    strip.words[word] = packed[0];
  }

  char* table_;
};

}  // namespace norm_device
