// Mean and reciprocal deviation of a row that its owner (primitives/row_owner.cuh) holds in
// registers.
//
// RMSNorm: one reduction. LayerNorm: two. The first finds the mean to within rounding, the second
// adds up the deviations from that, which correct it, and their squares: the deviations are exact
// where the mean is many times the spread. A row whose sums leave the range of f32, or whose mean
// was rounded too far, is taken again in f64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_held_row.cuh"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

/// Independent partial sums of a thread, so that additions need not wait for each other.
template <typename C>
struct ThreadSum {
  static constexpr int kChains = 4;
  C chains[kChains] = {};

  /// The i-th value of the thread.
  __device__ void Add(C value, int i) {
    chains[i % kChains] = i < kChains ? value : chains[i % kChains] + value;
  }
  __device__ void AddSquare(C value, int i) {
    chains[i % kChains] = i < kChains ? value * value : fma(value, value, chains[i % kChains]);
  }
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

/// Of the deviations from a shift: their mean, and the mean of their squares around that.
template <typename S>
struct DeviationMoments {
  S mean;
  S variance;

  __device__ DeviationMoments(S sum, S squares, S inverse_size) : mean(sum * inverse_size) {
    const S centred = fma(-sum, mean, squares) * inverse_size;
    // Not max(): a NaN stays one.
    variance = centred < S(0) ? S(0) : centred;
  }
};

/// Statistics in f64, for rows that other arithmetic does not hold. `again`: the row's elements.
template <RowKind kKind, typename C, typename RowAgain, typename Owner>
__device__ __noinline__ RowStats<C> StatisticsApart(const RowAgain& again, Owner& owner,
                                                    double inverse_size, const RowEps& eps) {
  RowStats<C> stats;
  double shift = 0.0;
  if constexpr (kKind == RowKind::kLayer) {
    double sum[1] = {0.0};
    again.ForEach([&](auto value, int) { sum[0] += static_cast<double>(value); });
    owner.Sum(sum);
    shift = sum[0] * inverse_size;
  }
  double sums[2] = {0.0, 0.0};
  again.ForEach([&](auto value, int) {
    const double deviation = static_cast<double>(value) - shift;
    sums[0] += deviation;
    sums[1] = fma(deviation, deviation, sums[1]);
  });
  owner.Sum(sums);
  if constexpr (kKind == RowKind::kRms) {
    stats.rstd = static_cast<C>(eps.ReciprocalDeviation(sums[1] * inverse_size));
    return stats;
  }
  const DeviationMoments<double> moments(sums[0], sums[1], inverse_size);
  SplitMean(shift + moments.mean, stats.mean, stats.mean_correction);
  stats.rstd = static_cast<C>(eps.ReciprocalDeviation(moments.variance));
  return stats;
}

/// What StatisticsApart returns, with copies of what it takes by reference, which is in memory.
template <RowKind kKind, typename C, typename RowAgain, typename Owner>
__device__ RowStats<C> WideRowStatistics(const RowAgain& row, Owner& owner, double inverse_size,
                                         const RowEps& row_eps) {
  const RowAgain again = row;
  const RowEps eps = row_eps;
  Owner owner_apart = owner;
  const RowStats<C> stats = StatisticsApart<kKind, C>(again, owner_apart, inverse_size, eps);
  owner.ContinueAfter(owner_apart);
  return stats;
}

/// RMSNorm.
template <typename X, typename Row, typename Owner>
__device__ RowStats<ComputeOf<X>> HeldSquares(Row& row, const StorageOf<X>* source, Owner& owner,
                                              double inverse_size, const RowEps& eps) {
  using C = ComputeOf<X>;
  ThreadSum<C> sum;
  row.ForEach([&](C value, int i) { sum.AddSquare(value, i); });
  C total[1] = {sum.Total()};
  owner.Sum(total);
  const C mean_square = total[0] * static_cast<C>(inverse_size);
  row.Forget();
  RowStats<C> stats;
  stats.rstd = eps.ReciprocalDeviation(mean_square);
  if constexpr (!std::is_same_v<C, double>) {
    const bool leaves = eps.SquaresLeaveF32(mean_square);
    if (Owner::AnyRow(leaves)) [[unlikely]] {
      const auto wide =
          WideRowStatistics<RowKind::kRms, C>(Again(row, source), owner, inverse_size, eps);
      if (leaves) stats = wide;
    }
  }
  return stats;
}

/// A mean of so few digits that the deviations of 16-bit elements from it are exact, but for
/// elements far below it, and so are their sums.
__device__ inline float ShortMean(float mean) {
  constexpr uint32_t kDropped = 0xfff;
  return __uint_as_float((__float_as_uint(mean) + (kDropped + 1) / 2) & ~kDropped);
}

/// LayerNorm.
template <typename X, typename Row, typename Owner>
__device__ RowStats<ComputeOf<X>> HeldMoments(Row& row, const StorageOf<X>* source, Owner& owner,
                                              double inverse_size, const RowEps& eps) {
  using C = ComputeOf<X>;
  const C share = static_cast<C>(inverse_size);
  RowStats<C> stats;
  C total[1];
  ThreadSum<C> values;
  row.ForEach([&](C value, int i) { values.Add(value, i); });
  total[0] = values.Total();
  owner.Sum(total);
  stats.mean = total[0] * share;
  if constexpr (sizeof(StorageOf<X>) < sizeof(C)) stats.mean = ShortMean(stats.mean);
  row.Forget();
  ThreadSum<C> sum;
  ThreadSum<C> squares;
  row.ForEachDeviation(stats.mean, [&](C deviation, int i) {
    sum.Add(deviation, i);
    squares.AddSquare(deviation, i);
  });
  C totals[2] = {sum.Total(), squares.Total()};
  owner.Sum(totals);
  row.Forget();
  const DeviationMoments<C> moments(totals[0], totals[1], share);
  stats.mean_correction = moments.mean;
  stats.rstd = eps.ReciprocalDeviation(moments.variance);
  if constexpr (!std::is_same_v<C, double>) {
    // A correction larger than the deviation costs digits of the variance.
    const bool far = !(moments.mean * moments.mean <= moments.variance + static_cast<C>(eps.value));
    const bool leaves = far || eps.SquaresLeaveF32(moments.variance);
    if (Owner::AnyRow(leaves)) [[unlikely]] {
      const auto wide =
          WideRowStatistics<RowKind::kLayer, C>(Again(row, source), owner, inverse_size, eps);
      if (leaves) stats = wide;
    }
  }
  return stats;
}

/// `source`: where the row's elements lie, for the passes in f64, which are seldom.
template <RowKind kKind, typename X, typename Row, typename Owner>
__device__ RowStats<ComputeOf<X>> HeldRowStatistics(Row& row, const StorageOf<X>* source,
                                                    Owner& owner, double inverse_size,
                                                    const RowEps& eps) {
  if constexpr (kKind == RowKind::kRms) {
    return HeldSquares<X>(row, source, owner, inverse_size, eps);
  }
  return HeldMoments<X>(row, source, owner, inverse_size, eps);
}

}  // namespace norm_device
