// A thread's part of a row whose y is quantized: its elements in registers, their weights and where
// their codes go.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_quantized_device.h"

namespace norm_device {

/// A thread's part of a row: granules of V elements at a fixed distance, with their weights.
template <typename Pair, RowKind kKind, typename Owner>
class QuantizedRow {
 public:
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  static constexpr int V = kWideElements<X>;
  static constexpr int kGranules = kQuantizedRowElements / V;
  static constexpr int kStep = Owner::kGranuleStep * V;
  using Granule = PackedGranule<X, V>;
  using Weights = PackedGranule<W, V>;

  __device__ QuantizedRow(const RowForwardParams& p, const Owner& owner, int64_t row)
      : p_(p),
        first_(owner.template FirstGranule<kGranules>() * V),
        limit_(row < p.rows ? static_cast<int>(p.hidden_size) - first_ : 0),
        offset_(row * p.hidden_size + first_) {}

  /// Reads x; x + residual, rounded and stored as the sum, where there is a residual. Zeros past the
  /// row's end.
  __device__ void Load() {
    Read(x_, p_.x);
    if (p_.residual == nullptr) return;
    Granule added[kGranules];
    Read(added, p_.residual);
    auto* sum = static_cast<StorageOf<X>*>(p_.residual_sum) + offset_;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      float sums[V];
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] = x_[g].Wide(i) + added[g].Wide(i);
      x_[g] = Granule::Rounded(sums);
      if (Holds(g)) x_[g].Store(sum + g * kStep, p_.aligned);
    }
  }

  /// Reads again what Load left.
  __device__ void Reload() { Read(x_, p_.residual != nullptr ? p_.residual_sum : p_.x); }

  __device__ float At(int g, int i) const { return x_[g].Wide(i); }
  __device__ bool Holds(int g) const { return g * kStep < limit_; }

  /// Calls visit(g, weights, biases) for every granule, ones and zeros where they are absent. Some
  /// are fetched together, so that their latencies overlap.
  template <typename Visit>
  __device__ void ForEachWeights(Visit&& visit) const {
    constexpr int kRegisters = sizeof(StorageOf<X>) == 2 && kKind == RowKind::kRms ? 8 : 16;
    constexpr int kMost = kRegisters / (Weights::kWords * (kKind == RowKind::kRms ? 1 : 2));
    constexpr int kTogether = kMost < 1 ? 1 : kMost;
    static_assert(kGranules % kTogether == 0);
#pragma unroll
    for (int from = 0; from < kGranules; from += kTogether) {
      Weights weights[kTogether];
      Weights biases[kTogether];
      Fetch(from, p_.weight, 1.0F, weights);
      if constexpr (kKind == RowKind::kLayer) Fetch(from, p_.bias, 0.0F, biases);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) visit(from + i, weights[i], biases[i]);
    }
  }

  /// Writes the values of granule g times factor.
  template <typename Format>
  __device__ void Store(int g, float factor, const float (&values)[V]) const {
    if (!Holds(g)) return;
    uint8_t* y = static_cast<uint8_t*>(p_.y) + offset_ + g * kStep;
    Format::Quantize(values, factor).Store(y, p_.aligned);
  }

 private:
  __device__ void Read(Granule (&to)[kGranules], const void* tensor) const {
    const auto* from = static_cast<const StorageOf<X>*>(tensor) + offset_;
    if (p_.aligned) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        to[g] = Granule::Zero();
        if (Holds(g)) to[g] = Granule::Load(from + g * kStep, true);
      }
    } else {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        to[g] = Granule::Zero();
        if (Holds(g)) to[g] = Granule::Load(from + g * kStep, false);
      }
    }
  }

  template <int kCount>
  __device__ void Fetch(int from, const void* tensor, float absent, Weights (&to)[kCount]) const {
    float neutral[V];
#pragma unroll
    for (int i = 0; i < V; ++i) neutral[i] = absent;
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = Weights::Rounded(neutral);
    if (tensor == nullptr) return;
    const auto* source = static_cast<const StorageOf<W>*>(tensor) + first_;
    if (p_.aligned) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (Holds(from + i)) to[i] = Weights::LoadConstant(source + (from + i) * kStep, true);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (Holds(from + i)) to[i] = Weights::LoadConstant(source + (from + i) * kStep, false);
      }
    }
  }

  const RowForwardParams& p_;
  int first_;  // column of the first element
  int limit_;  // columns from there to the row's end
  int64_t offset_;
  Granule x_[kGranules];
};

}  // namespace norm_device
