// Mean and reciprocal deviation of a row that its owner (primitives/row_owner.cuh) holds in
// registers.
//
// RMSNorm: one reduction. LayerNorm: two. The first finds the mean to within rounding, the second
// adds up the deviations from that, which correct it, and their squares: the deviations are exact
// where the mean is many times the spread. Of 16-bit elements the first adds up squares too, and
// the second follows only where the mean is larger than the spread. A row whose sums leave the range
// of f32, or whose mean was rounded too far, is taken again in f64.
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
  /// Where SquaresLeaveF32 is false. A step of Newton's from the approximation, within half a unit in
  /// the last place: half of the instructions of __frsqrt_rn, and no branch.
  __device__ float ReciprocalDeviation(float variance) const {
    const float sum = variance + static_cast<float>(value);
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(sum));
    const float product = sum * root;
    const float rest = fmaf(sum, root, -product);
    const float left = fmaf(-rest, root, fmaf(-product, root, 1.0F));
    return fmaf(0.5F * root, left, root);
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

/// Takes the rows that `leaves` names again in f64, where a row of the threads that must do so
/// together does.
template <RowKind kKind, typename X, int N, typename Row, typename Owner>
__device__ void TakeAgain(const bool (&leaves)[N], const Row (&rows)[N],
                          const StorageOf<X>* const (&sources)[N], Owner& owner,
                          double inverse_size, const RowEps& eps,
                          RowStats<ComputeOf<X>> (&stats)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (Owner::AnyRow(leaves[n])) [[unlikely]] {
      const auto wide = WideRowStatistics<kKind, ComputeOf<X>>(Again(rows[n], sources[n]), owner,
                                                               inverse_size, eps);
      if (leaves[n]) stats[n] = wide;
    }
  }
}

/// RMSNorm.
template <typename X, int N, typename Row, typename Owner>
__device__ void HeldSquares(Row (&rows)[N], const StorageOf<X>* const (&sources)[N], Owner& owner,
                            double inverse_size, const RowEps& eps,
                            RowStats<ComputeOf<X>> (&stats)[N]) {
  using C = ComputeOf<X>;
  C totals[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    ThreadSum<C> sum;
    rows[n].ForEach([&](C value, int i) { sum.AddSquare(value, i); });
    totals[n] = sum.Total();
  }
  owner.Sum(totals);
  bool leaves[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    rows[n].Forget();
    const C mean_square = totals[n] * static_cast<C>(inverse_size);
    stats[n].rstd = eps.ReciprocalDeviation(mean_square);
    if constexpr (!std::is_same_v<C, double>) leaves[n] = eps.SquaresLeaveF32(mean_square);
  }
  if constexpr (!std::is_same_v<C, double>) {
    TakeAgain<RowKind::kRms, X>(leaves, rows, sources, owner, inverse_size, eps, stats);
  }
}

/// A mean of so few digits that the deviations of 16-bit elements from it are exact, but for
/// elements far below it, and so are their sums.
__device__ inline float ShortMean(float mean) {
  constexpr uint32_t kDropped = 0xfff;
  return __uint_as_float((__float_as_uint(mean) + (kDropped + 1) / 2) & ~kDropped);
}

/// LayerNorm: completes statistics from the sums of the deviations from stats.mean and of their
/// squares. False where the correction of the mean, which costs the variance digits, is larger than
/// the deviation and `hidden` (a variance), or f32 does not hold the squares.
template <typename C>
__device__ bool CompleteMoments(C sum, C squares, C share, const RowEps& eps, C hidden,
                                RowStats<C>& stats) {
  const DeviationMoments<C> moments(sum, squares, share);
  stats.mean_correction = moments.mean;
  stats.rstd = eps.ReciprocalDeviation(moments.variance);
  if constexpr (std::is_same_v<C, double>) {
    return true;
  } else {
    return moments.mean * moments.mean <= moments.variance + hidden &&
           !eps.SquaresLeaveF32(moments.variance);
  }
}

/// The second reduction of LayerNorm: of the deviations from stats.mean.
template <typename X, int N, typename Row, typename Owner>
__device__ void HeldDeviations(Row (&rows)[N], const StorageOf<X>* const (&sources)[N],
                               Owner& owner, double inverse_size, const RowEps& eps,
                               RowStats<ComputeOf<X>> (&stats)[N]) {
  using C = ComputeOf<X>;
  C totals[2 * N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    ThreadSum<C> sum;
    ThreadSum<C> squares;
    rows[n].ForEachDeviation(stats[n].mean, [&](C deviation, int i) {
      sum.Add(deviation, i);
      squares.AddSquare(deviation, i);
    });
    totals[2 * n] = sum.Total();
    totals[2 * n + 1] = squares.Total();
  }
  owner.Sum(totals);
  const C share = static_cast<C>(inverse_size);
  bool leaves[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    rows[n].Forget();
    leaves[n] = !CompleteMoments(totals[2 * n], totals[2 * n + 1], share, eps,
                                 static_cast<C>(eps.value), stats[n]);
  }
  if constexpr (!std::is_same_v<C, double>) {
    TakeAgain<RowKind::kLayer, X>(leaves, rows, sources, owner, inverse_size, eps, stats);
  }
}

/// LayerNorm.
template <typename X, int N, typename Row, typename Owner>
__device__ void HeldMoments(Row (&rows)[N], const StorageOf<X>* const (&sources)[N], Owner& owner,
                            double inverse_size, const RowEps& eps,
                            RowStats<ComputeOf<X>> (&stats)[N]) {
  using C = ComputeOf<X>;
  const C share = static_cast<C>(inverse_size);
  C sums[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    ThreadSum<C> sum;
    rows[n].ForEach([&](C value, int i) { sum.Add(value, i); });
    sums[n] = sum.Total();
  }
  owner.Sum(sums);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    stats[n].mean = sums[n] * share;
    if constexpr (sizeof(StorageOf<X>) < sizeof(C)) stats[n].mean = ShortMean(stats[n].mean);
    rows[n].Forget();
  }
  HeldDeviations<X>(rows, sources, owner, inverse_size, eps, stats);
}

/// Elements of a thread up to which HeldNarrowMoments is used; more of them leave it too few registers.
inline constexpr int kMostNarrowElements = 33;

/// LayerNorm of 16-bit elements, whose squares f32 holds exactly: one reduction, where the mean is
/// no larger than the deviation; else the squares lose digits, and HeldDeviations follows. Threads'
/// sums add up in f64: f32 would round the mean by a part of itself.
template <typename X, int N, typename Row, typename Owner>
__device__ void HeldNarrowMoments(Row (&rows)[N], const StorageOf<X>* const (&sources)[N],
                                  Owner& owner, double inverse_size, const RowEps& eps,
                                  RowStats<float> (&stats)[N]) {
  const float share = static_cast<float>(inverse_size);
  double totals[2 * N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    ThreadSum<float> sum;
    ThreadSum<float> squares;
    rows[n].ForEach([&](float value, int i) {
      sum.Add(value, i);
      squares.AddSquare(value, i);
    });
    totals[2 * n] = static_cast<double>(sum.Total());
    totals[2 * n + 1] = static_cast<double>(squares.Total());
  }
  owner.Sum(totals);
  bool far[N];
  bool any_far = false;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    rows[n].Forget();
    far[n] = !CompleteMoments(static_cast<float>(totals[2 * n]),
                              static_cast<float>(totals[2 * n + 1]), share, eps, 0.0F, stats[n]);
    any_far = any_far || far[n];
    const double mean = totals[2 * n] * inverse_size;
    stats[n].mean = ShortMean(static_cast<float>(mean));
    stats[n].mean_correction = static_cast<float>(mean - static_cast<double>(stats[n].mean));
  }
  if (Owner::AnyRow(any_far)) [[unlikely]] {
    RowStats<float> apart[N];
#pragma unroll
    for (int n = 0; n < N; ++n) apart[n].mean = stats[n].mean;
    HeldDeviations<X>(rows, sources, owner, inverse_size, eps, apart);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (far[n]) stats[n] = apart[n];
    }
  }
}

/// Of N rows that a thread has part in, whose sums are under way together. `sources`: where the
/// rows' elements lie, for the passes in f64, which are seldom.
template <RowKind kKind, typename X, int N, typename Row, typename Owner>
__device__ void HeldRowStatistics(Row (&rows)[N], const StorageOf<X>* const (&sources)[N],
                                  Owner& owner, double inverse_size, const RowEps& eps,
                                  RowStats<ComputeOf<X>> (&stats)[N]) {
  if constexpr (kKind == RowKind::kRms) {
    HeldSquares<X>(rows, sources, owner, inverse_size, eps, stats);
  } else if constexpr (sizeof(StorageOf<X>) < sizeof(ComputeOf<X>) &&
                       Row::kElements <= kMostNarrowElements) {
    HeldNarrowMoments<X>(rows, sources, owner, inverse_size, eps, stats);
  } else {
    HeldMoments<X>(rows, sources, owner, inverse_size, eps, stats);
  }
}

/// Of one row.
template <RowKind kKind, typename X, typename Row, typename Owner>
__device__ RowStats<ComputeOf<X>> HeldRowStatistics(Row& row, const StorageOf<X>* source,
                                                    Owner& owner, double inverse_size,
                                                    const RowEps& eps) {
  const StorageOf<X>* const sources[1] = {source};
  RowStats<ComputeOf<X>> stats[1];
  HeldRowStatistics<kKind, X>(reinterpret_cast<Row(&)[1]>(row), sources, owner, inverse_size, eps,
                              stats);
  return stats[0];
}

}  // namespace norm_device
