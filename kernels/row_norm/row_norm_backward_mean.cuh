// The mean of a row as the caller gives it, rounded to f32, and what tells the rest of it.
#pragma once

#include <cstdint>

namespace norm_device {

/// The statistics of a row as they were given.
struct GivenStats {
  float mean = 0.0F;
  float rstd = 0.0F;
};

/// Whether the mean's own rounding shows in h: then the row is centred twice.
__device__ inline bool MeanNeedsCorrection(const GivenStats& stats) {
  return !(fabsf(stats.mean * stats.rstd) < 1.0F);
}

/// A sum of x of a row that tells what rounding took from the given mean. It begins with a power of
/// two that no few hundred x take half way down or up: then the rounding of an addition is exact to
/// tell, and is summed apart; sums of the lanes of a warp, less their beginning, add up exactly.
struct SplitSum {
  float sum = 0.0F;
  float lost = 0.0F;

  /// What is subtracted from f32 x: the mean, of rows so far from 0 that this does not round.
  __device__ static float Shift(const GivenStats& stats) {
    constexpr float kFar = 16.0F;
    return fabsf(stats.mean * stats.rstd) >= kFar ? stats.mean : 0.0F;
  }
  /// n of the x of a row add up to at most n * |mean - shift| + sqrt(n * hidden_size) / rstd.
  __device__ static float Begin(const GivenStats& stats, float shift) {
    const float most = kTimes * (fabsf(stats.mean - shift) + __fdividef(1.0F, stats.rstd));
    return __uint_as_float((__float_as_uint(most) + 0x007fffffU) & 0x7f800000U);
  }
  __device__ void Add(float term) {
    const float next = sum + term;
    lost += term - (next - sum);
    sum = next;
  }
  /// The sum of x - mean, but for what is lost, from the row's sum of x - shift. f32 holds that of a
  /// row of no more than kTimes elements.
  template <typename A>
  __device__ static float Deviation(A total, const GivenStats& stats, float shift,
                                    int64_t hidden_size) {
    return static_cast<float>(
        fma(-static_cast<A>(hidden_size), static_cast<A>(stats.mean - shift), total));
  }

 private:
  static constexpr float kTimes = 8192.0F;
};

}  // namespace norm_device
