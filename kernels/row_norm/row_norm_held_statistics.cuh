// Mean and reciprocal deviation of a row that its owner (primitives/row_owner.cuh) holds in
// registers.
//
// LayerNorm: one reduction of the deviations from a pivot, a value of the row itself, and their
// squares. The deviations are exact where the mean is many times the spread; their mean corrects the
// pivot. A row whose pivot turns out to be far out, or whose sums leave the range of f32, is taken
// again in f64. RMSNorm: one reduction.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/moments.cuh"
#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

/// A thread's part of a row: kGranules granules of V elements at a fixed distance.
template <typename X, int V, int kGranulesOfThread, typename Owner>
struct HeldRow {
  static constexpr int kGranules = kGranulesOfThread;
  static constexpr bool kNarrow = sizeof(StorageOf<X>) < sizeof(ComputeOf<X>);
  static constexpr int kStep = Owner::kGranuleStep * V;

  PackedGranule<X, V> values[kGranules];
  int first;  // column of the first element
  int limit;  // columns from `first` to the row's end

  __device__ HeldRow(const Owner& owner, int hidden_size)
      : first(owner.template FirstGranule<kGranules>() * V), limit(hidden_size - first) {}

  __device__ bool Holds(int g) const { return g * kStep < limit; }

  /// The compiler neither keeps wide forms of the values nor the comparisons with the row's end.
  __device__ void Forget() {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) values[g].Forget();
    asm volatile("" : "+r"(limit));
  }

  /// Sets the elements past the row's end.
  __device__ void Fill(const PackedGranule<X, V>& granule) {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (!Holds(g)) values[g] = granule;
    }
  }

  /// Calls visit(value, i) for every element, with a number i that consecutive elements differ in;
  /// kAll: also for those past the row's end.
  template <bool kAll, typename Visit>
  __device__ void ForEach(Visit&& visit) const {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (kAll || Holds(g)) {
#pragma unroll
        for (int i = 0; i < V; ++i) visit(values[g].Wide(i), g * V + i);
      }
    }
  }
};

/// A row of any size: an even number of elements as HeldRow, and the last one of an odd row as the
/// first thread's extra.
template <typename X, int V, int kGranules, typename Owner>
struct SplitRow {
  using Main = HeldRow<X, V, kGranules, Owner>;
  using Extra = HeldRow<X, 1, 1, Owner>;
  static constexpr bool kNarrow = Main::kNarrow;

  Main main;
  Extra extra;

  __device__ SplitRow(const Owner& owner, int hidden_size)
      : main(owner, hidden_size / 2 * 2), extra(owner, hidden_size) {
    extra.first = hidden_size - 1;
    extra.limit = owner.IsFirstThread() && hidden_size % 2 != 0 ? 1 : 0;
  }

  __device__ void Forget() {
    main.Forget();
    extra.Forget();
  }

  template <bool kAll, typename Visit>
  __device__ void ForEach(Visit&& visit) const {
    main.template ForEach<kAll>(visit);
    extra.template ForEach<kAll>(visit);
  }
};

/// How a row's elements are held, by elements per access: narrow ones as SplitRow, but for the
/// shortest rows (HasExtraElement).
template <typename X, int V, int kElements, typename Owner>
using RowHold =
    std::conditional_t<(V * sizeof(StorageOf<X>) < 16 && Owner::kLanesPerRow > 4),
                       SplitRow<X, V, kElements / V, Owner>, HeldRow<X, V, kElements / V, Owner>>;

/// What rounding left of a + b = sum.
template <typename C>
__device__ C TwoSumError(C a, C b, C sum) {
  const C of_b = sum - a;
  return (a - (sum - of_b)) + (b - of_b);
}

/// Independent partial sums of a thread, so that additions need not wait for each other.
template <typename C>
struct ThreadSum {
  static constexpr int kChains = 4;
  C chains[kChains] = {};

  __device__ C Total() const { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }
};

/// What is added to mean squares, and which of them f32 does not hold.
struct RowEps {
  double value;
  float smallest_square;

  /// Whether f32 squares with this mean overflowed (or met a NaN), or may have underflowed where
  /// eps does not hide it.
  __device__ bool SquaresLeaveF32(float mean_square) const {
    constexpr float kLargest = 3e38F;
    return !(mean_square < kLargest) || mean_square < smallest_square;
  }
  __device__ float ReciprocalDeviation(float variance) const {
    return __frsqrt_rn(variance + static_cast<float>(value));
  }
  __device__ double ReciprocalDeviation(double variance) const {
    return norm_device::ReciprocalDeviation(variance, value);
  }
};

/// Sum of the row, or of its squares (kRms), in type S. kAll: elements past the row's end are zero.
template <RowKind kKind, typename S, bool kAll, typename Row, typename Owner>
__device__ S SumOfRow(const Row& row, Owner& owner) {
  ThreadSum<S> sum;
  row.template ForEach<kAll>([&](auto value, int i) {
    S& chain = sum.chains[i % ThreadSum<S>::kChains];
    const S wide = static_cast<S>(value);
    chain = kKind == RowKind::kRms ? fma(wide, wide, chain) : chain + wide;
  });
  S total[1] = {sum.Total()};
  owner.Sum(total);
  return total[0];
}

/// Sum and sum of squares of the deviations from `shift`, types A and B of sums. The deviations are
/// taken in B. kAll: elements past the row's end are `shift`.
template <typename A, typename B, bool kAll, typename Row, typename Owner>
__device__ void DeviationsOfRow(const Row& row, B shift, Owner& owner, A& sum, B& squares) {
  ThreadSum<B> sums;
  ThreadSum<B> square_sums;
  row.template ForEach<kAll>([&](auto value, int i) {
    constexpr int kChains = ThreadSum<B>::kChains;
    const B deviation = static_cast<B>(value) - shift;
    sums.chains[i % kChains] += deviation;
    square_sums.chains[i % kChains] = fma(deviation, deviation, square_sums.chains[i % kChains]);
  });
  sum = static_cast<A>(sums.Total());
  squares = square_sums.Total();
  owner.SumBoth(sum, squares);
}

/// sum / size as a quotient and what its rounding left: no division, exact where the quotient is.
template <typename C>
struct Quotient {
  C value;
  C left;

  __device__ Quotient(C sum, C size, C inverse_size) {
    const C near = sum * inverse_size;
    value = fma(fma(-near, size, sum), inverse_size, near);
    left = fma(-value, size, sum) * inverse_size;
  }
};

/// Mean square deviation from the mean, where the deviations from a shift have `mean` and `squares`
/// add up theirs.
template <typename C>
__device__ C Variance(C sum, const Quotient<C>& mean, C squares, C inverse_size) {
  const C centred = fma(-sum, mean.left, fma(-sum, mean.value, squares)) * inverse_size;
  // Not max(): a NaN stays one.
  return centred < C(0) ? C(0) : centred;
}

/// LayerNorm statistics in f64 with a plain mean first, for rows that other arithmetic does not
/// hold.
template <typename C, typename Row, typename Owner>
__device__ RowStats<C> WideRowStatistics(const Row& row, Owner& owner, double size,
                                         double inverse_size, const RowEps& eps) {
  const double shift = SumOfRow<RowKind::kLayer, double, false>(row, owner) * inverse_size;
  double sum;
  double squares;
  DeviationsOfRow<double, double, false>(row, shift, owner, sum, squares);
  const Quotient<double> left(sum, size, inverse_size);
  RowStats<C> stats;
  if constexpr (std::is_same_v<C, double>) {
    stats.mean = shift;
    stats.mean_correction = left.value;
  } else {
    SplitMean(shift + left.value, stats.mean, stats.mean_correction);
  }
  stats.rstd = static_cast<C>(eps.ReciprocalDeviation(Variance(sum, left, squares, inverse_size)));
  return stats;
}

/// RMSNorm.
template <typename C, typename Row, typename Owner>
__device__ RowStats<C> HeldSquares(Row& row, Owner& owner, double inverse_size, const RowEps& eps) {
  const C mean_square = SumOfRow<RowKind::kRms, C, true>(row, owner) * static_cast<C>(inverse_size);
  row.Forget();
  RowStats<C> stats;
  stats.rstd = eps.ReciprocalDeviation(mean_square);
  if constexpr (!std::is_same_v<C, double>) {
    const bool leaves = eps.SquaresLeaveF32(mean_square);
    if (Owner::AnyRow(leaves)) {
      const double wide = SumOfRow<RowKind::kRms, double, false>(row, owner);
      if (leaves) stats.rstd = static_cast<C>(eps.ReciprocalDeviation(wide * inverse_size));
    }
  }
  return stats;
}

/// LayerNorm, from the deviations from `pivot`, some value of the row.
template <typename C, typename Row, typename Owner>
__device__ RowStats<C> HeldMoments(Row& row, C pivot, Owner& owner, double size,
                                   double inverse_size, const RowEps& eps) {
  // 16-bit elements: a thread's sum of deviations is exact but for elements far below the largest,
  // so in f64 over threads the mean is right to much more than f32.
  using A = std::conditional_t<Row::kNarrow, double, C>;
  A sum;
  C squares;
  DeviationsOfRow<A, C, true>(row, pivot, owner, sum, squares);
  row.Forget();
  const Quotient<A> left(sum, static_cast<A>(size), static_cast<A>(inverse_size));
  RowStats<C> stats;
  if constexpr (Row::kNarrow) {
    SplitMean(static_cast<double>(pivot) + left.value, stats.mean, stats.mean_correction);
  } else {
    stats.mean = pivot + left.value;
    stats.mean_correction = TwoSumError(pivot, left.value, stats.mean);
  }
  const C variance =
      static_cast<C>(Variance(sum, left, static_cast<A>(squares), static_cast<A>(inverse_size)));
  stats.rstd = eps.ReciprocalDeviation(variance);

  // A pivot far from the mean, among the row's deviations, costs digits of the variance.
  constexpr C kFarthestPivot = 6;
  const C distance = static_cast<C>(left.value);
  bool leaves = !(distance * distance <= kFarthestPivot * variance);
  if constexpr (!std::is_same_v<C, double>) leaves = leaves || eps.SquaresLeaveF32(variance);
  if (Owner::AnyRow(leaves)) {
    const RowStats<C> wide = WideRowStatistics<C>(row, owner, size, inverse_size, eps);
    if (leaves) stats = wide;
  }
  return stats;
}

template <RowKind kKind, typename C, typename Row, typename Owner>
__device__ RowStats<C> HeldRowStatistics(Row& row, C pivot, Owner& owner, int hidden_size,
                                         double inverse_size, const RowEps& eps) {
  if constexpr (kKind == RowKind::kRms) return HeldSquares<C>(row, owner, inverse_size, eps);
  return HeldMoments<C>(row, pivot, owner, static_cast<double>(hidden_size), inverse_size, eps);
}

}  // namespace norm_device
