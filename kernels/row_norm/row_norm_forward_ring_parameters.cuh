// weight and bias of a thread that has the same columns in every row.
#pragma once

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"

namespace norm_device {

/// weight and bias of the columns of one thread: held where they take no more registers than x.
template <typename Pair, RowKind kKind, int V, int kGranules>
class RingParameters {
 public:
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  static constexpr bool kHeld = sizeof(StorageOf<W>) == sizeof(StorageOf<X>);
  static constexpr bool kHasBias = kKind == RowKind::kLayer;

  /// `column` of granule 0; `step` columns to the next granule.
  __device__ RingParameters(const RowForwardParams& p, int column, int step, bool active,
                            bool has_last)
      : weight_(static_cast<const StorageOf<W>*>(p.weight)),
        bias_(static_cast<const StorageOf<W>*>(p.bias)),
        aligned_(p.aligned),
        offset_(p.weight != nullptr && kKind == RowKind::kRms ? static_cast<float>(p.weight_offset)
                                                              : 0.0F) {
    if (weight_ != nullptr) weight_ += column;
    if (bias_ != nullptr) bias_ += column;
    if constexpr (kHeld) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if (g < kGranules - 1 ? active : has_last) {
          scales_[g] = Weight(g * step);
          if (kHasBias) shifts_[g] = Bias(g * step);
        } else {
          scales_[g] = Granule::Zero();
          if (kHasBias) shifts_[g] = Granule::Zero();
        }
      }
    }
  }

  /// y from normalized values of granule g, which is g * step columns away.
  __device__ void Apply(int g, int step, float (&y)[V]) {
    Granule scale;
    Granule shift;
    if constexpr (kHeld) {
      // Kept as they lie in memory.
      scales_[g].Forget();
      scale = scales_[g];
      if constexpr (kHasBias) {
        shifts_[g].Forget();
        shift = shifts_[g];
      }
    } else {
      // Loads that would be kept in registers over all rows are told apart.
      asm volatile("" : "+l"(weight_), "+l"(bias_));
      scale = Weight(g * step);
      if (kHasBias) shift = Bias(g * step);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if constexpr (kHasBias) {
        y[i] = fmaf(y[i], scale.Wide(i), shift.Wide(i));
      } else {
        y[i] *= scale.Wide(i) + offset_;
      }
    }
  }

 private:
  using Granule = PackedGranule<W, V>;

  __device__ Granule Weight(int offset) const {
    float ones[V];
#pragma unroll
    for (int i = 0; i < V; ++i) ones[i] = 1.0F;
    return weight_ == nullptr ? Granule::Rounded(ones)
                              : Granule::LoadConstant(weight_ + offset, aligned_);
  }
  __device__ Granule Bias(int offset) const {
    return bias_ == nullptr ? Granule::Zero() : Granule::LoadConstant(bias_ + offset, aligned_);
  }

  const StorageOf<W>* weight_;
  const StorageOf<W>* bias_;
  bool aligned_;
  float offset_;
  Granule scales_[kHeld ? kGranules : 1];
  Granule shifts_[kHeld && kHasBias ? kGranules : 1];
};

}  // namespace norm_device
