// What row forward writes in the type of x: statistics, and y from a row's elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_held_statistics.cuh"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

template <RowKind kKind, typename C>
__device__ void StoreStatistics(const RowForwardParams& p, int64_t row, const RowStats<C>& stats) {
  if (kKind == RowKind::kLayer && p.mean != nullptr) {
    static_cast<C*>(p.mean)[row] = stats.mean + stats.mean_correction;
  }
  if (p.rstd != nullptr) static_cast<C*>(p.rstd)[row] = stats.rstd;
}

/// Whether granules of V elements that start at `row` can be accessed at once: pairs, if the row
/// starts at a multiple of theirs; wider ones, if all tensors and rows do.
template <typename X, int V>
__device__ bool CanAccessAtOnce(const RowForwardParams& p, const StorageOf<X>* row) {
  if constexpr (V == 1) return true;
  if constexpr (V * sizeof(StorageOf<X>) < 16) {
    return reinterpret_cast<uintptr_t>(row) % (V * sizeof(StorageOf<X>)) == 0;
  }
  return p.aligned;
}

/// (x - mean) * rstd of one row, or x * rstd. Elements of 16 bits: the mean's correction is below
/// their resolution unless it is zero, so it is taken off after scaling, in one operation.
template <RowKind kKind, typename X>
class RowNormalizer {
 public:
  using C = ComputeOf<X>;

  __device__ explicit RowNormalizer(const RowStats<C>& stats)
      : stats_(stats), scaled_correction_(-stats.mean_correction * stats.rstd) {}

  __device__ C operator()(C x) const {
    if constexpr (kKind == RowKind::kRms) return x * stats_.rstd;
    if constexpr (sizeof(StorageOf<X>) < sizeof(C)) {
      return fma(x - stats_.mean, stats_.rstd, scaled_correction_);
    }
    return Centred<kKind>(x, stats_) * stats_.rstd;
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
  template <int V>
  __device__ void Apply(const PackedGranule<X, V>& x, const Words<V>& words,
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

/// Granules whose weight and bias are fetched together: as many as leave room in 64 registers for a
/// row of kHeldWords words per thread.
template <typename W, RowKind kKind, int V, int kHeldWords>
__host__ __device__ constexpr int FetchedTogether() {
  constexpr int kWords = (kHeldWords > 16 ? 8 : 16) / (kKind == RowKind::kRms ? 1 : 2);
  constexpr int kGranules = kWords / PackedGranule<W, V>::kWords;
  return kGranules < 1 ? 1 : kGranules;
}

/// Calls visit(granule number, column, y) for every granule of the thread, those past the row's end
/// included, y in the compute type. kPlain: weight and bias can be fetched at once, and there is one
/// rounding; not kPlain takes every call.
template <bool kPlain, typename Pair, RowKind kKind, typename X, int V, int kGranules,
          typename Owner, typename Visit>
__device__ void ForEachOutput(const RowForwardParams& p, const HeldRow<X, V, kGranules, Owner>& row,
                              const RowAffine<Pair, kKind>& affine,
                              const RowNormalizer<kKind, X>& normalize, Visit&& visit) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  constexpr int kMost =
      FetchedTogether<typename Pair::Weight, kKind, V, kGranules * PackedGranule<X, V>::kWords>();
  constexpr int kTogether = kMost < kGranules ? kMost : kGranules;
  const bool at_once = kPlain || affine.template CanFetchAtOnce<V>(p.aligned);
  const bool round_first = !kPlain && affine.round_normalized();
#pragma unroll
  for (int first = 0; first < kGranules; first += kTogether) {
    RowAffineWords<typename Pair::Weight, V> words[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      if (g < kGranules) {
        words[i] = affine.template Fetch<V>(row.first + g * Row::kStep, row.Holds(g), at_once);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = first + i;
      if (g < kGranules) {
        ComputeOf<X> y[V];
        affine.template Apply<V>(row.values[g], words[i], normalize, round_first, y);
        visit(g, row.first + g * Row::kStep, y);
      }
    }
  }
}

/// Stores y of pairs of 16-bit elements where rows may start at an odd address of such: there, words
/// of the second element of one pair and the first of the next, which the lane before has. All lanes
/// of the warp take part, in rows of either kind.
template <typename X, int kGranules, typename Owner>
class ShiftedPairs {
 public:
  using Row = HeldRow<X, 2, kGranules, Owner>;

  __device__ ShiftedPairs(const Row& row, StorageOf<X>* y)
      : row_(row),
        y_(reinterpret_cast<uint16_t*>(y)),
        lane_(threadIdx.x % kLanes),
        shifted_(reinterpret_cast<uintptr_t>(y) % sizeof(uint32_t) != 0) {}

  /// In order of granules.
  __device__ void Store(int g, int column, uint32_t word) {
    const uint32_t sent = lane_ == kLastLane ? word_ : word;
    const uint32_t before = __shfl_sync(0xffffffffU, sent, (lane_ + kLastLane) % kLanes, kLanes);
    word_ = word;
    if (row_.Holds(g)) {
      last_held_ = word;
      if (g == 0 && lane_ == 0 && shifted_) {
        y_[column] = static_cast<uint16_t>(word);  // the pair before is not this warp's
      } else {
        *reinterpret_cast<uint32_t*>(y_ + column - (shifted_ ? 1 : 0)) =
            shifted_ ? __funnelshift_l(before, word, 16) : word;
      }
    }
  }

  /// The second element of the warp's, or the row's, last pair.
  __device__ void Finish() const {
    const int held = row_.limit <= 0 ? 0 : (row_.limit - 1) / Row::kStep + 1;
    const int last = held < kGranules ? held - 1 : kGranules - 1;
    const bool ends_row = row_.limit - last * Row::kStep <= 2;
    if (shifted_ && last >= 0 && (ends_row || (lane_ == kLastLane && last == kGranules - 1))) {
      y_[row_.first + last * Row::kStep + 1] = static_cast<uint16_t>(last_held_ >> 16);
    }
  }

 private:
  static constexpr int kLanes = Owner::kLanesPerRow;
  static constexpr int kLastLane = kLanes - 1;

  const Row& row_;
  uint16_t* y_;
  int lane_;
  bool shifted_;
  uint32_t word_ = 0;
  uint32_t last_held_ = 0;
};

template <RowKind kKind, typename Pair, typename X, int V, int kGranules, typename Owner>
__device__ void WriteHeldRow(const RowForwardParams& p, const HeldRow<X, V, kGranules, Owner>& row,
                             int64_t row_offset, const RowAffine<Pair, kKind>& affine,
                             const RowNormalizer<kKind, X>& normalize) {
  using Values = const ComputeOf<X>(&)[V];
  constexpr bool kPairs = V == 2 && sizeof(StorageOf<X>) == 2;
  // Rows of one warp may start at odd and even addresses.
  constexpr bool kMixedRows = kPairs && Owner::kLanesPerRow < kWarpThreads;
  StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + row_offset;
  const bool plain = affine.template CanFetchAtOnce<V>(p.aligned) && !affine.round_normalized();
  const bool store_at_once = CanAccessAtOnce<X, V>(p, y);
  const auto store = [&](int g, int column, Values values, bool at_once) {
    auto granule = PackedGranule<X, V>::Rounded(values);
    granule.Forget();  // not computed in the branch: granules can be under way together
    if (row.Holds(g)) granule.Store(y + column, at_once);
  };
  if (plain && store_at_once && !kMixedRows) {
    ForEachOutput<true>(p, row, affine, normalize,
                        [&](int g, int column, Values values) { store(g, column, values, true); });
    return;
  }
  if constexpr (kPairs) {
    if (plain) {
      ShiftedPairs<X, kGranules, Owner> pairs(row, y);
      ForEachOutput<true>(p, row, affine, normalize, [&](int g, int column, Values values) {
        pairs.Store(g, column, PackedGranule<X, 2>::Rounded(values).words[0]);
      });
      pairs.Finish();
      return;
    }
  }
  ForEachOutput<false>(p, row, affine, normalize, [&](int g, int column, Values values) {
    store(g, column, values, store_at_once);
  });
}

template <RowKind kKind, typename Pair, typename X, int V, int kGranules, typename Owner>
__device__ void WriteHeldRow(const RowForwardParams& p, const SplitRow<X, V, kGranules, Owner>& row,
                             int64_t row_offset, const RowAffine<Pair, kKind>& affine,
                             const RowNormalizer<kKind, X>& normalize) {
  WriteHeldRow<kKind, Pair>(p, row.main, row_offset, affine, normalize);
  WriteHeldRow<kKind, Pair>(p, row.extra, row_offset, affine, normalize);
}

/// Writes y of a row in the type of x.
template <RowKind kKind, typename Pair, typename Row>
__device__ void WriteRow(const RowForwardParams& p, const Row& row, int64_t row_offset,
                         const RowAffine<Pair, kKind>& affine,
                         const RowStats<typename RowAffine<Pair, kKind>::C>& stats) {
  const RowNormalizer<kKind, typename Pair::Activation> normalize(stats);
  WriteHeldRow<kKind, Pair>(p, row, row_offset, affine, normalize);
}

}  // namespace norm_device
