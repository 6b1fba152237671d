// What row forward writes in the type of x: y from a row's elements.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_affine.cuh"
#include "row_norm/row_norm_forward_input.cuh"
#include "row_norm/row_norm_held_row.cuh"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

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

/// y of a row where addresses do not allow wide accesses, or with two roundings.
template <RowKind kKind, typename Pair, typename X, int V, int kGranules, typename Owner>
__device__ __noinline__ void WriteApart(const RowForwardParams& p,
                                        const HeldRow<X, V, kGranules, Owner>& row,
                                        int64_t row_offset, const RowStats<ComputeOf<X>>& stats) {
  using Row = HeldRow<X, V, kGranules, Owner>;
  const RowAffine<Pair, kKind> affine(p);
  const RowNormalizer<kKind, X> normalize(stats);
  StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + row_offset;
#pragma unroll 1
  for (int g = 0; g < kGranules && row.Holds(g); ++g) {
    const int column = row.first + g * Row::kStep;
    const auto words = affine.template Fetch<V>(column, true, false);
    ComputeOf<X> values[V];
    affine.template Apply<V>(row.values[g], words, normalize, affine.round_normalized(), values);
    PackedGranule<X, V>::Rounded(values).Store(y + column, false);
  }
}

template <bool kPlain, RowKind kKind, typename Pair, typename X, int V, int kGranules,
          typename Owner>
__device__ void WriteHeldRow(const RowForwardParams& p, const HeldRow<X, V, kGranules, Owner>& row,
                             int64_t row_offset, const RowAffine<Pair, kKind>& affine,
                             const RowStats<ComputeOf<X>>& stats) {
  using Values = const ComputeOf<X>(&)[V];
  constexpr bool kPairs = V == 2 && sizeof(StorageOf<X>) == 2;
  // Rows of one warp may start at odd and even addresses.
  constexpr bool kMixedRows = kPairs && Owner::kLanesPerRow < kWarpThreads;
  StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + row_offset;
  const RowNormalizer<kKind, X> normalize(stats);
  const auto store = [&](int g, int column, Values values) {
    auto granule = PackedGranule<X, V>::Rounded(values);
    granule.Forget();  // not computed in the branch: granules can be under way together
    if (row.Holds(g)) granule.Store(y + column, true);
  };
  if constexpr (kPlain) {
    ForEachOutput<true>(p, row, affine, normalize, store);
    return;
  }
  const bool plain = affine.template CanFetchAtOnce<V>(p.aligned) && !affine.round_normalized();
  const bool store_at_once = CanAccessAtOnce<X, V>(p, y);
  if (plain && store_at_once && !kMixedRows) [[likely]] {
    ForEachOutput<true>(p, row, affine, normalize, store);
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
  const HeldRow<X, V, kGranules, Owner> row_apart = row;
  const RowStats<ComputeOf<X>> stats_apart = stats;
  WriteApart<kKind, Pair>(p, row_apart, row_offset, stats_apart);
}

template <bool kPlain, RowKind kKind, typename Pair, typename X, int V, int kGranules,
          typename Owner>
__device__ void WriteHeldRow(const RowForwardParams& p, const SplitRow<X, V, kGranules, Owner>& row,
                             int64_t row_offset, const RowAffine<Pair, kKind>& affine,
                             const RowStats<ComputeOf<X>>& stats) {
  WriteHeldRow<kPlain, kKind, Pair>(p, row.main, row_offset, affine, stats);
  WriteHeldRow<kPlain, kKind, Pair>(p, row.extra, row_offset, affine, stats);
}

/// Writes y of a row in the type of x. kPlain: see RowLaunchKind.
template <bool kPlain, RowKind kKind, typename Pair, typename Row>
__device__ void WriteRow(const RowForwardParams& p, const Row& row, int64_t row_offset,
                         const RowAffine<Pair, kKind>& affine,
                         const RowStats<typename RowAffine<Pair, kKind>::C>& stats) {
  WriteHeldRow<kPlain, kKind, Pair>(p, row, row_offset, affine, stats);
}

}  // namespace norm_device
