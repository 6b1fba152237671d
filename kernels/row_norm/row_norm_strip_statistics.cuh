// A row that threads hold as strips (row_norm_strip.cuh), who shares it, and its statistics.
#pragma once

#include <cstdint>

#include "primitives/moments.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_held_statistics.cuh"
#include "row_norm/row_norm_statistics.cuh"
#include "row_norm/row_norm_strip.cuh"

namespace norm_device {

/// A thread's part of a row: a strip, and single elements after the strips.
template <typename X, int kRowThreads, int kWords>
struct StripRow {
  using Map = StripMap<X, kRowThreads, kWords>;
  static constexpr int kElements = Map::kElements;
  static constexpr int kMaxExtras = Map::kMaxExtras;

  Strip<X, kWords> strip;
  PackedGranule<X, 1> extra[kMaxExtras];
  bool holds;  // a strip
  int extras;

  __device__ void Forget() {
    strip.Forget();
#pragma unroll
    for (int i = 0; i < kMaxExtras; ++i) extra[i].Forget();
  }

  /// Calls visit(value, i) for every element, with numbers that consecutive elements differ in.
  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
    if (holds) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) visit(strip.Wide(i), i);
    }
#pragma unroll
    for (int i = 0; i < kMaxExtras; ++i) {
      if (i < extras) visit(extra[i].Wide(0), i);
    }
  }
  /// The same where few registers matter more than time.
  template <typename Visit>
  __device__ void ForEachSlowly(Visit&& visit) const {
    if (holds) {
      constexpr int kPerWord = Strip<X, kWords>::kPerWord;
      uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = strip.words[i];
#pragma unroll 1
      for (int i = 0; i < kWords; ++i) {
#pragma unroll
        for (int k = 0; k < kPerWord; ++k) visit(WordCodec<X>::Widen(words + i, k));
      }
    }
#pragma unroll
    for (int i = 0; i < kMaxExtras; ++i) {
      if (i < extras) visit(extra[i].Wide(0));
    }
  }
};

/// The threads that share a row: kLanes lanes of a warp, or kWarps whole warps with a barrier of
/// their own.
template <int kLanes, int kWarps>
class StripOwner {
 public:
  static constexpr int kThreads = kWarps * kWarpThreads;  // of a group
  struct alignas(16) Scratch {
    double partial[2][2][kWarps];
  };

  __device__ StripOwner(Scratch& scratch, int group) : scratch_(&scratch), group_(group) {}

  __device__ void Barrier() const {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(group_ + 1), "n"(kThreads) : "memory");
    }
  }
  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kLanes>(values);
    if constexpr (kWarps > 1) {
      const int warp = static_cast<int>(threadIdx.x) / kWarpThreads % kWarps;
#pragma unroll
      for (int k = 0; k < K; ++k) Part<C>(k)[warp] = values[k];
      Barrier();
#pragma unroll
      for (int k = 0; k < K; ++k) {
        values[k] = C(0);
#pragma unroll
        for (int i = 0; i < kWarps; ++i) values[k] += Part<C>(k)[i];
      }
      turn_ ^= 1;
    }
  }
  /// Whether `condition` holds for a row whose threads must reach sums together with this one's.
  __device__ static bool AnyRow(bool condition) {
    return kLanes == kWarpThreads ? condition : __any_sync(0xffffffffU, condition) != 0;
  }

 private:
  template <typename T>
  __device__ T* Part(int k) const {
    return reinterpret_cast<T*>(scratch_->partial[turn_][k]);
  }

  Scratch* scratch_;
  int group_;
  int turn_ = 0;
};

/// Statistics of a row in f64.
template <RowKind kKind, typename Row, typename Owner>
__device__ RowStats<float> WideStripStatistics(const Row& row, Owner& owner, double inverse_size,
                                               double eps) {
  RowStats<float> stats;
  double mean = 0.0;
  if (kKind == RowKind::kLayer) {
    double sum[1] = {};
    row.ForEachSlowly([&](float value) { sum[0] += static_cast<double>(value); });
    owner.Sum(sum);
    mean = sum[0] * inverse_size;
    SplitMean(mean, stats.mean, stats.mean_correction);
  }
  double squares[1] = {};
  row.ForEachSlowly([&](float value) {
    const double centred = static_cast<double>(value) - mean;
    squares[0] = fma(centred, centred, squares[0]);
  });
  owner.Sum(squares);
  stats.rstd = static_cast<float>(ReciprocalDeviation(squares[0] * inverse_size, eps));
  return stats;
}

/// Sums of a thread's elements less `shift`, and of their squares.
template <RowKind kKind, typename Row>
__device__ void StripSums(const Row& row, float shift, float (&totals)[2]) {
  constexpr int kChains = 4;
  float sums[kChains] = {};
  float squares[kChains] = {};
  row.ForEach([&](float value, int i) {
    if (kKind == RowKind::kLayer) {
      value -= shift;
      sums[i % kChains] += value;
    }
    squares[i % kChains] = fmaf(value, value, squares[i % kChains]);
  });
  totals[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  totals[1] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

/// RMSNorm: one reduction. LayerNorm: the sums of 16-bit elements and of their squares hold the
/// moments of a row whose mean is not large against its spread;
/// other rows take a second reduction, of deviations from the rounded mean. Rows whose sums leave the
/// range of f32, or whose mean was rounded too far, are taken again in f64.
template <RowKind kKind, typename Row, typename Owner>
__device__ RowStats<float> StripStatistics(Row& row, Owner& owner, const RowForwardParams& p) {
  const auto inverse_size = static_cast<float>(p.inverse_size);
  const RowEps eps = {p.eps, p.smallest_square};
  RowStats<float> stats;
  float totals[2];
  StripSums<kKind>(row, 0.0F, totals);
  bool leaves;
  if constexpr (kKind == RowKind::kLayer) {
    // A thread's sum of 16-bit elements hardly rounds; the row's would, in f32.
    double wide_totals[2] = {static_cast<double>(totals[0]), static_cast<double>(totals[1])};
    owner.Sum(wide_totals);
    const DeviationMoments<double> wide(wide_totals[0], wide_totals[1], p.inverse_size);
    auto variance = static_cast<float>(wide.variance);
    stats.mean = ShortMean(static_cast<float>(wide.mean));
    stats.mean_correction = static_cast<float>(wide.mean - static_cast<double>(stats.mean));
    const bool far = !(stats.mean * stats.mean <= variance);
    row.Forget();
    leaves = eps.SquaresLeaveF32(variance);
    if (Owner::AnyRow(far)) {
      StripSums<kKind>(row, stats.mean, totals);
      owner.Sum(totals);
      row.Forget();
      if (far) {
        const DeviationMoments<float> moments(totals[0], totals[1], inverse_size);
        variance = moments.variance;
        stats.mean_correction = moments.mean;
        // A correction larger than the deviation costs digits of the variance.
        leaves = !(moments.mean * moments.mean <= moments.variance + static_cast<float>(p.eps)) ||
                 eps.SquaresLeaveF32(moments.variance);
      }
    }
    stats.rstd = eps.ReciprocalDeviation(variance);
  } else {
    float total[1] = {totals[1]};
    owner.Sum(total);
    row.Forget();
    const float mean_square = total[0] * inverse_size;
    stats.rstd = eps.ReciprocalDeviation(mean_square);
    leaves = eps.SquaresLeaveF32(mean_square);
  }
  if (Owner::AnyRow(leaves)) {
    const RowStats<float> wide = WideStripStatistics<kKind>(row, owner, p.inverse_size, p.eps);
    if (leaves) stats = wide;
  }
  return stats;
}

}  // namespace norm_device
