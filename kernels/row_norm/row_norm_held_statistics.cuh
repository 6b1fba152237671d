// Mean and reciprocal deviation of a row that its owner (primitives/row_owner.cuh) holds in
// registers.
//
// LayerNorm: a plain sum gives a shift close to the mean. The deviations from it are exact where
// the row's mean is many times its spread, so their sum corrects the mean and their squares give
// the variance, in one further reduction. RMSNorm: one reduction. f32 sums that leave their range
// are taken again in f64.
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
  static constexpr int kStep = Owner::kGranuleStep * V;

  PackedGranule<X, V> values[kGranules];
  int first;  // column of the first element
  int limit;  // columns from `first` to the row's end

  __device__ HeldRow(const Owner& owner, int hidden_size)
      : first(owner.template FirstGranule<kGranules>() * V), limit(hidden_size - first) {}

  __device__ bool Holds(int g) const { return g * kStep < limit; }

  __device__ void Forget() {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) values[g].Forget();
  }

  /// Calls visit(column, granule) for every granule of the thread.
  template <typename Visit>
  __device__ void operator()(Visit&& visit) const {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (Holds(g)) visit(first + g * kStep, values[g]);
    }
  }

  /// Calls visit(value, i) for every element, with its index i in the granule.
  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (Holds(g)) {
#pragma unroll
        for (int i = 0; i < V; ++i) visit(values[g].Wide(i), V == 1 ? g : i);
      }
    }
  }
};

/// Independent partial sums of a thread, so that additions need not wait for each other.
template <typename C>
struct ThreadSum {
  static constexpr int kChains = 4;
  C chains[kChains] = {};

  __device__ C Total() const { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }
};

/// Sum of the row, or of its squares (kRms), in type S: C, or f64 where f32 sums left their range.
template <RowKind kKind, typename S, typename Row, typename Owner>
__device__ S SumOfRow(const Row& row, Owner& owner) {
  ThreadSum<S> sum;
  row.ForEach([&](auto value, int i) {
    S& chain = sum.chains[i % ThreadSum<S>::kChains];
    const S wide = static_cast<S>(value);
    chain = kKind == RowKind::kRms ? fma(wide, wide, chain) : chain + wide;
  });
  S total[1] = {sum.Total()};
  owner.Sum(total);
  return total[0];
}

/// Sum and sum of squares of the deviations from `shift`.
template <typename S, typename Row, typename Owner>
__device__ void DeviationsOfRow(const Row& row, S shift, Owner& owner, S (&totals)[2]) {
  ThreadSum<S> sum;
  ThreadSum<S> squares;
  row.ForEach([&](auto value, int i) {
    constexpr int kChains = ThreadSum<S>::kChains;
    const S deviation = static_cast<S>(value) - shift;
    sum.chains[i % kChains] += deviation;
    squares.chains[i % kChains] = fma(deviation, deviation, squares.chains[i % kChains]);
  });
  totals[0] = sum.Total();
  totals[1] = squares.Total();
  owner.Sum(totals);
}

/// The mean of deviations that add up to `sum`, rounded once: exact where the quotient is.
__device__ inline double MeanDeviation(double sum, double size, double inverse_size) {
  const double quotient = sum * inverse_size;
  return fma(fma(-quotient, size, sum), inverse_size, quotient);
}

/// Of deviations whose mean is `left`.
template <typename S>
__device__ double Variance(const S (&sums)[2], double left, double inverse_size) {
  const double variance =
      fma(-static_cast<double>(sums[0]), left, static_cast<double>(sums[1])) * inverse_size;
  // Not max(): a NaN stays one.
  return variance < 0.0 ? 0.0 : variance;
}

template <RowKind kKind, typename C, typename Row, typename Owner>
__device__ RowStats<C> HeldRowStatistics(Row& row, Owner& owner, int hidden_size,
                                         double inverse_size, double eps) {
  constexpr bool kCanLeaveRange = !std::is_same_v<C, double>;
  const double size = static_cast<double>(hidden_size);
  RowStats<C> stats;
  if constexpr (kKind == RowKind::kRms) {
    const C squares = SumOfRow<kKind, C>(row, owner);
    row.Forget();
    const C mean_square = squares * static_cast<C>(inverse_size);
    stats.rstd = ReciprocalDeviation(mean_square, eps);
    if constexpr (kCanLeaveRange) {
      const bool leaves = SquaresLeaveF32(mean_square, eps);
      if (Owner::AnyRow(leaves)) {
        const double wide = SumOfRow<kKind, double>(row, owner);
        if (leaves) stats.rstd = static_cast<C>(ReciprocalDeviation(wide * inverse_size, eps));
      }
    }
    return stats;
  }

  stats.mean = SumOfRow<kKind, C>(row, owner) * static_cast<C>(inverse_size);
  if constexpr (kCanLeaveRange) {
    const bool leaves = !isfinite(stats.mean);
    if (Owner::AnyRow(leaves)) {
      const double wide = SumOfRow<kKind, double>(row, owner);
      if (leaves) stats.mean = static_cast<C>(wide * inverse_size);
    }
  }
  row.Forget();
  C sums[2];
  DeviationsOfRow<C>(row, stats.mean, owner, sums);
  double left = MeanDeviation(sums[0], size, inverse_size);
  double variance = Variance(sums, left, inverse_size);
  stats.rstd = ReciprocalDeviation(static_cast<C>(variance), eps);
  if constexpr (kCanLeaveRange) {
    const bool leaves = SquaresLeaveF32(variance, eps);
    if (Owner::AnyRow(leaves)) {
      double wide[2];
      DeviationsOfRow<double>(row, static_cast<double>(stats.mean), owner, wide);
      if (leaves) {
        left = MeanDeviation(wide[0], size, inverse_size);
        variance = Variance(wide, left, inverse_size);
        stats.rstd = static_cast<C>(ReciprocalDeviation(variance, eps));
      }
    }
  }
  row.Forget();
  stats.mean_correction = static_cast<C>(left);
  return stats;
}

}  // namespace norm_device
