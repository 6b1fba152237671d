// The second pass of LayerNorm over a row that does not fit in registers.
#pragma once

#include <cstdint>

#include "primitives/compensated_sum.cuh"
#include "primitives/element_access.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

struct StreamedMoments {
  double deviation;  // mean of (x - mean) - mean_correction
  double variance;   // about the true mean
};

/// Moments of a row about mean + mean_correction, which is within half an ulp of the true mean: the
/// square of the deviation that is left is no larger than the variance, and taking it off costs no
/// precision.
template <typename X, int V, typename C>
__device__ StreamedMoments StreamMoments(BlockRow& owner, BlockRow::Scratch& scratch,
                                         const StorageOf<X>* row, int64_t hidden_size, bool aligned,
                                         C mean, C mean_correction) {
  ExactSum<C> deviations;
  double squares = 0.0;
  const int64_t step = static_cast<int64_t>(owner.threads()) * V;
  for (int64_t column = static_cast<int64_t>(owner.thread()) * V; column < hidden_size;
       column += step) {
    const Granule<X, V> x = LoadGranule<X, V>(row + column, aligned);
    C square_sum = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const C deviation = (x.Wide(i) - mean) - mean_correction;
      deviations.Add(deviation);
      square_sum = fma(deviation, deviation, square_sum);
    }
    squares += static_cast<double>(square_sum);
  }
  const double thread_moments[2] = {deviations.Total(), squares};
  double totals[2];
  owner.template Sum<double>(thread_moments, totals, scratch);
  const double share = 1.0 / static_cast<double>(hidden_size);
  StreamedMoments moments;
  moments.deviation = totals[0] * share;
  moments.variance = totals[1] * share;
  // Not max(): a NaN stays one.
  const double centred = moments.variance - moments.deviation * moments.deviation;
  if (!(centred < 0.0)) moments.variance = centred;
  return moments;
}

}  // namespace norm_device
