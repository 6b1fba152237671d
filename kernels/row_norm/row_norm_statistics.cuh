// Mean and reciprocal deviation of one row, the same way in forward and backward, with the row in
// registers or read again in every pass.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/compensated_sum.cuh"
#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Statistics of one row. The centred value of x is (x - mean) - mean_correction.
template <typename C>
struct RowStats {
  C mean = 0;
  C mean_correction = 0;
  C rstd = 0;
};

template <RowKind kKind, typename C>
__device__ C Centred(C x, const RowStats<C>& stats) {
  return kKind == RowKind::kLayer ? (x - stats.mean) - stats.mean_correction : x;
}

/// Calls visit(value) for every element of the row that this thread holds.
template <typename X, int V, int kGranules, typename Row, typename Visit>
__device__ void ForEachHeld(const Granule<X, V> (&x)[kGranules], const Row& owner, int hidden_size,
                            Visit&& visit) {
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    if ((g * owner.threads() + owner.thread()) * V < hidden_size) {
#pragma unroll
      for (int i = 0; i < V; ++i) visit(x[g].Wide(i));
    }
  }
}

/// Of a row in registers. RMSNorm: one reduction. LayerNorm: two; three in f64, which has no wider
/// type to add up in, so that the mean of the deviations corrects the mean. f32 sums that leave
/// their range are taken again in f64.
template <RowKind kKind, typename X, int V, int kGranules, typename Row>
__device__ RowStats<ComputeOf<X>> HeldRowStats(const Granule<X, V> (&x)[kGranules], Row& owner,
                                               typename Row::Scratch& scratch, int hidden_size,
                                               double eps) {
  using C = ComputeOf<X>;
  const double share = 1.0 / static_cast<double>(hidden_size);
  RowStats<C> stats;
  double total[1];
  if (kKind == RowKind::kLayer) {
    ExactSum<C> sum;
    ForEachHeld(x, owner, hidden_size, [&](C value) { sum.Add(value); });
    const double thread_sum[1] = {sum.Total()};
    owner.template Sum<double>(thread_sum, total, scratch);
    if (!std::is_same_v<C, double> && !isfinite(total[0])) {
      double wide[1] = {0.0};
      ForEachHeld(x, owner, hidden_size, [&](C value) { wide[0] += static_cast<double>(value); });
      owner.template Sum<double>(wide, total, scratch);
    }
    SplitMean(total[0] * share, stats.mean, stats.mean_correction);
    if constexpr (std::is_same_v<C, double>) {
      ExactSum<C> deviation;
      ForEachHeld(x, owner, hidden_size, [&](C value) { deviation.Add(value - stats.mean); });
      const double thread_deviation[1] = {deviation.Total()};
      owner.template Sum<double>(thread_deviation, total, scratch);
      stats.mean_correction = total[0] * share;
    }
  }
  C squares[1] = {C(0)};
  ForEachHeld(x, owner, hidden_size, [&](C value) {
    const C centred = Centred<kKind>(value, stats);
    squares[0] = fma(centred, centred, squares[0]);
  });
  owner.template Sum<C>(squares, total, scratch);
  double variance = total[0] * share;
  if (!std::is_same_v<C, double> && SquaresLeaveF32(variance, eps)) {
    double wide[1] = {0.0};
    ForEachHeld(x, owner, hidden_size, [&](C value) {
      const double centred = static_cast<double>(Centred<kKind>(value, stats));
      wide[0] = fma(centred, centred, wide[0]);
    });
    owner.template Sum<double>(wide, total, scratch);
    variance = total[0] * share;
    stats.rstd = static_cast<C>(ReciprocalDeviation(variance, eps));
  } else {
    stats.rstd = ReciprocalDeviation(static_cast<C>(variance), eps);
  }
  return stats;
}

/// Of a row that is read in every pass: load(column) in the first, which may have side effects on
/// memory that this thread alone reads again at `row`. Threads add many values up: in f64, or
/// exactly, so that equal values do not drift.
template <RowKind kKind, typename X, int V, typename Load>
__device__ RowStats<ComputeOf<X>> StreamedRowStats(Load&& load, const StorageOf<X>* row,
                                                   BlockRow& owner, BlockRow::Scratch& scratch,
                                                   int64_t hidden_size, bool aligned, double eps) {
  using C = ComputeOf<X>;
  const double share = 1.0 / static_cast<double>(hidden_size);
  const int64_t first = static_cast<int64_t>(owner.thread()) * V;
  const int64_t step = static_cast<int64_t>(owner.threads()) * V;
  RowStats<C> stats;
  if (kKind == RowKind::kRms) {
    double squares[1] = {0.0};
    for (int64_t column = first; column < hidden_size; column += step) {
      const Granule<X, V> x = load(column);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const double value = static_cast<double>(x.Wide(i));
        squares[0] = fma(value, value, squares[0]);
      }
    }
    double total[1];
    owner.template Sum<double>(squares, total, scratch);
    stats.rstd = static_cast<C>(ReciprocalDeviation(total[0] * share, eps));
    return stats;
  }

  ExactSum<double> sum;
  for (int64_t column = first; column < hidden_size; column += step) {
    const Granule<X, V> x = load(column);
#pragma unroll
    for (int i = 0; i < V; ++i) sum.Add(static_cast<double>(x.Wide(i)));
  }
  const double thread_sum[1] = {sum.Total()};
  double total[1];
  owner.template Sum<double>(thread_sum, total, scratch);
  SplitMean(total[0] * share, stats.mean, stats.mean_correction);

  ExactSum<double> deviations;
  double squares = 0.0;
  for (int64_t column = first; column < hidden_size; column += step) {
    const Granule<X, V> x = LoadGranule<X, V>(row + column, aligned);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const double deviation = static_cast<double>(Centred<kKind>(x.Wide(i), stats));
      if (std::is_same_v<C, double>) deviations.Add(deviation);
      squares = fma(deviation, deviation, squares);
    }
  }
  const double thread_moments[2] = {deviations.Total(), squares};
  double totals[2];
  owner.template Sum<double>(thread_moments, totals, scratch);
  // f64: the mean is within a few ulps, so the deviation that is left is no larger than the
  // variance's root, and taking its square off costs no precision. f32: the pair is exact.
  const double left = totals[0] * share;
  if (std::is_same_v<C, double>) stats.mean_correction = static_cast<C>(left);
  const double variance = totals[1] * share;
  const double centred = variance - left * left;
  // Not max(): a NaN stays one.
  stats.rstd = static_cast<C>(ReciprocalDeviation(centred < 0.0 ? variance : centred, eps));
  return stats;
}

}  // namespace norm_device
