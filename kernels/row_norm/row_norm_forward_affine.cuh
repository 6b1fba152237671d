// What row forward makes of a row's elements and statistics: normalized values, with weight and bias
// applied.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

template <RowKind kKind, typename C>
__device__ void StoreStatistics(const RowForwardParams& p, int64_t row, const RowStats<C>& stats) {
  if (kKind == RowKind::kLayer && p.mean != nullptr) {
    static_cast<C*>(p.mean)[row] = stats.mean + stats.mean_correction;
  }
  if (p.rstd != nullptr) static_cast<C*>(p.rstd)[row] = stats.rstd;
}

/// (x - mean) * rstd of one row, or x * rstd. The mean's correction is taken off after scaling, in
/// one operation.
template <RowKind kKind, typename X>
class RowNormalizer {
 public:
  using C = ComputeOf<X>;

  __device__ explicit RowNormalizer(const RowStats<C>& stats)
      : stats_(stats), scaled_correction_(-stats.mean_correction * stats.rstd) {}

  __device__ C operator()(C x) const {
    if constexpr (kKind == RowKind::kRms) return x * stats_.rstd;
    return fma(x - stats_.mean, stats_.rstd, scaled_correction_);
  }

 private:
  RowStats<C> stats_;
  C scaled_correction_;
};

/// Weight and bias of V columns, as they lie in memory.
template <typename W, int V>
struct RowAffineWords {
  PackedGranule<W, V> weight;
  PackedGranule<W, V> bias;
};

/// Weight and bias applied to normalized values. Fetching is apart, so that many loads are under
/// way before the first is needed.
template <typename Pair, RowKind kKind>
class RowAffine {
 public:
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  using C = ComputeOf<X>;
  template <int V>
  using Words = RowAffineWords<W, V>;

  __device__ explicit RowAffine(const RowForwardParams& params)
      : weight_(static_cast<const StorageOf<W>*>(params.weight)),
        bias_(static_cast<const StorageOf<W>*>(params.bias)),
        weight_offset_(static_cast<C>(params.weight_offset)),
        round_normalized_(params.round_normalized) {
    // One address in registers, not one computation from the parameters per granule.
    asm volatile("" : "+l"(weight_), "+l"(bias_));
  }

  __device__ bool round_normalized() const {
    return sizeof(StorageOf<X>) < sizeof(C) && round_normalized_;
  }

  /// Of the columns from `column` on; ones and zeros where weight or bias are absent, or !holds.
  /// `at_once`: of CanFetchAtOnce.
  template <int V>
  __device__ Words<V> Fetch(int64_t column, bool holds, bool at_once) const {
    Words<V> words = {PackedGranule<W, V>::Filled(1), PackedGranule<W, V>::Filled(0)};
    if (holds && weight_ != nullptr) {
      words.weight = PackedGranule<W, V>::LoadConstant(weight_ + column, at_once);
    }
    if (kKind == RowKind::kLayer && holds && bias_ != nullptr) {
      words.bias = PackedGranule<W, V>::LoadConstant(bias_ + column, at_once);
    }
    return words;
  }

  /// Where neither is absent and addresses allow wide accesses; anything if !holds.
  template <int V>
  __device__ Words<V> FetchPresent(int column, bool holds) const {
    Words<V> words = {};
    if (holds) words.weight = PackedGranule<W, V>::LoadConstant(weight_ + column, true);
    if (kKind == RowKind::kLayer && holds) {
      words.bias = PackedGranule<W, V>::LoadConstant(bias_ + column, true);
    }
    return words;
  }

  /// Whether V columns can be accessed at once, where x of all rows can.
  template <int V>
  __device__ bool CanFetchAtOnce(bool aligned) const {
    if constexpr (V == 1) return true;
    if constexpr (V * sizeof(StorageOf<X>) < 16) {
      constexpr uintptr_t kBytes = V * sizeof(StorageOf<W>);
      return (reinterpret_cast<uintptr_t>(weight_) | reinterpret_cast<uintptr_t>(bias_)) % kBytes ==
             0;
    }
    return aligned;
  }

  /// y in the compute type. `round_first`: of round_normalized().
  template <int V, typename Granule>
  __device__ void Apply(const Granule& x, const Words<V>& words,
                        const RowNormalizer<kKind, X>& normalize, bool round_first,
                        C (&y)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] = normalize(x.Wide(i));
    if (round_first) {
      const auto rounded = PackedGranule<X, V>::Rounded(y);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = rounded.Wide(i);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const C scale = static_cast<C>(words.weight.Wide(i));
      y[i] = kKind == RowKind::kLayer ? fma(y[i], scale, static_cast<C>(words.bias.Wide(i)))
                                      : y[i] * (scale + weight_offset_);
    }
  }

 private:
  const StorageOf<W>* weight_;
  const StorageOf<W>* bias_;
  C weight_offset_;
  bool round_normalized_;
};

}  // namespace norm_device
