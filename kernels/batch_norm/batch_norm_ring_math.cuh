// What the resident kernels compute from granules: sums of a channel, coefficients from the sums,
// outputs from the coefficients.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring.cuh"

namespace norm_device {

/// Whether products of a number with values of the size that it comes with are safe in f32.
__device__ __forceinline__ bool IsPlain(float value) {
  constexpr float kSmallest = 1e-18F;
  constexpr float kLargest = 1e18F;
  return fabsf(value) > kSmallest && fabsf(value) < kLargest;
}

/// Sums of x - centre and of its square, centre a value of the channel. The sums are f64, so what
/// the centre leaves of the mean costs nothing; f32 only carries differences from a value of the
/// same thread.
template <typename X>
struct ForwardRing {
  using Segment = ForwardRingSegment;
  static constexpr RingTraits kTraits = kForwardRing;
  static constexpr RingTraits kFoldedTraits = kFoldedForwardRing;
  static constexpr int kSums = 2;
  static constexpr int kPublished = kForwardRingSums;
  static constexpr int kElements = WideGranule<X>::kElements;

  /// y = (x - mean) * factor + offset: serves where factor neither overflows nor loses digits.
  struct Direct {
    float mean;
    float factor;  // rstd * scale
    float offset;  // shift - correction * factor
  };
  struct alignas(16) Coefficients {
    Direct direct;
    float correction;  // the mean is direct.mean + correction
    float rstd;
    float scale;
    float shift;
    bool is_direct;
  };
  static __device__ __forceinline__ Direct Select(bool first, const Direct& a, const Direct& b) {
    return {first ? a.mean : b.mean, first ? a.factor : b.factor, first ? a.offset : b.offset};
  }

  static __device__ const void* Input(const Segment& segment, int) { return segment.x; }
  static __device__ void* Output(const Segment& segment) { return segment.y; }

  static __device__ float Centre(const Segment& segment, uint32_t, int64_t first_element) {
    const float value =
        Element<X>::Widen(static_cast<const StorageOf<X>*>(segment.x)[first_element]);
    return isfinite(value) ? value : 0.0F;
  }
  /// Below it f32 squares lose what only a tiny eps would not hide.
  static __device__ float SmallestSquare(const Segment& segment) {
    constexpr double kHidingEps = 1e-20;
    return segment.eps < kHidingEps ? 1e-30F : 0.0F;
  }

  /// The first `inside` of kGranules granules.
  template <int kGranules>
  static __device__ __forceinline__ void Accumulate(const uint4 (&raw)[1][kGranules], int inside,
                                                    float centre, float smallest_square,
                                                    double (&sums)[kSums]) {
    if (inside == 0) return;
    float values[kElements];
    WideGranule<X>::Widen(raw[0][0], values);
    const float origin = values[0];
    float sum = 0;
    float squares = 0;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (g < inside) {
        WideGranule<X>::Widen(raw[0][g], values);
        float part = 0;
        float part_squares = 0;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const float d = values[i] - origin;
          part += d;
          part_squares = fmaf(d, d, part_squares);
        }
        sum += part;
        squares += part_squares;
      }
    }
    double wide_sum = static_cast<double>(sum);
    double wide_squares = static_cast<double>(squares);
    constexpr float kLargest = 3e38F;
    if (!(squares < kLargest && squares >= smallest_square)) {
      wide_sum = 0.0;
      wide_squares = 0.0;
#pragma unroll 1
      for (int g = 0; g < inside; ++g) {
        WideGranule<X>::Widen(g == 0 ? raw[0][0] : raw[0][kGranules - 1], values);
        static_assert(kGranules <= 2);
        for (int i = 0; i < kElements; ++i) {
          const double d = static_cast<double>(values[i]) - static_cast<double>(origin);
          wide_sum += d;
          wide_squares = fma(d, d, wide_squares);
        }
      }
    }
    const double offset = static_cast<double>(origin) - static_cast<double>(centre);
    const double moved = static_cast<double>(inside * kElements) * offset;
    sums[0] += wide_sum + moved;
    sums[1] += fma(offset, fma(2.0, wide_sum, moved), wide_squares);
  }

  /// What Finish and Write need beside the sums, read while these are on their way.
  struct Parameters {
    float scale;
    float shift;
    float running_mean;
    float running_var;
    double eps;
  };
  static __device__ Parameters Load(const Segment& segment, uint32_t channel, bool like_x,
                                    bool writes) {
    Parameters parameters = {};
    parameters.scale = LoadParameter<X>(segment.weight, channel, like_x, 1.0F);
    parameters.shift = LoadParameter<X>(segment.bias, channel, like_x, 0.0F);
    parameters.eps = segment.eps;
    if (writes && segment.new_running_mean != nullptr) {
      parameters.running_mean = segment.running_mean[channel];
      parameters.running_var = segment.running_var[channel];
    }
    return parameters;
  }

  struct Statistics {
    double mean;
    double variance;
  };
  static __device__ Coefficients Finish(const Parameters& parameters, const double (&sums)[kSums],
                                        float centre, double share, Statistics& statistics) {
    const double from_centre = sums[0] * share;
    const double mean = static_cast<double>(centre) + from_centre;
    double variance = fma(sums[1], share, -from_centre * from_centre);
    if (variance < 0.0) variance = 0.0;  // a NaN stays
    statistics = {mean, variance};
    Coefficients c = {};
    c.direct.mean = static_cast<float>(mean);
    c.correction =
        isfinite(mean) ? static_cast<float>(mean - static_cast<double>(c.direct.mean)) : 0.0F;
    c.rstd = ReciprocalRoot(variance + parameters.eps);
    c.scale = parameters.scale;
    c.shift = parameters.shift;
    c.direct.factor = c.rstd * c.scale;
    c.direct.offset = fmaf(-c.correction, c.direct.factor, c.shift);
    c.is_direct = IsPlain(c.direct.factor);
    return c;
  }
  static __device__ void Write(const Segment& segment, uint32_t channel, bool, double values,
                               const Parameters& parameters, const Coefficients& c,
                               const Statistics& statistics) {
    if (segment.mean != nullptr) segment.mean[channel] = c.direct.mean;
    if (segment.rstd != nullptr) segment.rstd[channel] = c.rstd;
    if (segment.new_running_mean != nullptr) {
      const double kept = 1.0 - segment.momentum;
      const double unbiased = statistics.variance * (values / (values - 1.0));
      segment.new_running_mean[channel] = static_cast<float>(
          kept * static_cast<double>(parameters.running_mean) + segment.momentum * statistics.mean);
      segment.new_running_var[channel] = static_cast<float>(
          kept * static_cast<double>(parameters.running_var) + segment.momentum * unbiased);
    }
  }

  static __device__ __forceinline__ float ApplyDirect(const float (&inputs)[1], const Direct& c) {
    return fmaf(inputs[0] - c.mean, c.factor, c.offset);
  }
  /// (x - mean) * rstd first, then weight: the product of x and weight may overflow on its own.
  static __device__ __forceinline__ float Apply(const float (&inputs)[1], const Coefficients& c) {
    return fmaf(((inputs[0] - c.direct.mean) - c.correction) * c.rstd, c.scale, c.shift);
  }
};

/// Sums of dy, dy * d and d, d = x - mean.
template <typename X>
struct BackwardRing {
  using Segment = BackwardRingSegment;
  static constexpr RingTraits kTraits = kBackwardRing;
  static constexpr RingTraits kFoldedTraits = kFoldedBackwardRing;
  static constexpr int kSums = 3;
  static constexpr int kPublished = kBackwardRingSums;
  static constexpr int kElements = WideGranule<X>::kElements;

  /// dx = (dy - mean_dy) * factor - (x - mean) * slope + offset: serves where factor and slope
  /// neither overflow nor lose digits. For two-byte elements both means are 0 here and in the offset,
  /// which costs less than their rounding while the mean is a few deviations.
  struct Direct {
    float mean;
    float mean_dy;
    float factor;  // rstd * scale
    float slope;   // factor * rstd * mean_dyh
    float offset;
  };
  struct alignas(16) Coefficients {
    Direct direct;
    float mean;
    float correction;  // what rounding left of the batch mean
    float rstd;
    float scale;
    float mean_dy;
    float mean_dy_low;
    float mean_dyh;
    bool is_direct;
  };
  static constexpr bool kMeansInOffset = sizeof(StorageOf<X>) == 2;
  static __device__ __forceinline__ Direct Select(bool first, const Direct& a, const Direct& b) {
    if constexpr (kMeansInOffset) {
      return {0.0F, 0.0F, first ? a.factor : b.factor, first ? a.slope : b.slope,
              first ? a.offset : b.offset};
    } else {
      return {first ? a.mean : b.mean, first ? a.mean_dy : b.mean_dy, first ? a.factor : b.factor,
              first ? a.slope : b.slope, first ? a.offset : b.offset};
    }
  }

  static __device__ const void* Input(const Segment& segment, int tensor) {
    return tensor == 0 ? segment.x : segment.dy;
  }
  static __device__ void* Output(const Segment& segment) { return segment.dx; }

  static __device__ float Centre(const Segment& segment, uint32_t channel, int64_t) {
    return segment.mean[channel];
  }
  static __device__ float SmallestSquare(const Segment&) { return 0.0F; }

  template <int kGranules>
  static __device__ __forceinline__ void Accumulate(const uint4 (&raw)[2][kGranules], int inside,
                                                    float centre, float, double (&sums)[kSums]) {
    float sum_dy = 0;
    float sum_dyd = 0;
    float sum_d = 0;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (g < inside) {
        float x[kElements];
        float dy[kElements];
        WideGranule<X>::Widen(raw[0][g], x);
        WideGranule<X>::Widen(raw[1][g], dy);
        float part_dy = 0;
        float part_dyd = 0;
        float part_d = 0;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const float d = x[i] - centre;
          part_dy += dy[i];
          part_dyd = fmaf(dy[i], d, part_dyd);
          part_d += d;
        }
        sum_dy += part_dy;
        sum_dyd += part_dyd;
        sum_d += part_d;
      }
    }
    sums[0] += static_cast<double>(sum_dy);
    sums[1] += static_cast<double>(sum_dyd);
    sums[2] += static_cast<double>(sum_d);
  }

  struct Parameters {
    float scale;
    float rstd;
  };
  static __device__ Parameters Load(const Segment& segment, uint32_t channel, bool like_x, bool) {
    return {LoadParameter<X>(segment.weight, channel, like_x, 1.0F), segment.rstd[channel]};
  }

  struct Statistics {
    double dweight;
    double dbias;
  };
  static __device__ Coefficients Finish(const Parameters& parameters, const double (&sums)[kSums],
                                        float centre, double share, Statistics& statistics) {
    const double correction = sums[2] * share;
    const double dweight = static_cast<double>(parameters.rstd) * (sums[1] - correction * sums[0]);
    const double mean_dy = sums[0] * share;
    statistics = {dweight, sums[0]};
    Coefficients c = {};
    c.mean = centre;
    c.correction = static_cast<float>(correction);
    c.rstd = parameters.rstd;
    c.scale = parameters.scale;
    c.mean_dy = static_cast<float>(mean_dy);
    c.mean_dy_low = static_cast<float>(mean_dy - static_cast<double>(c.mean_dy));
    c.mean_dyh = static_cast<float>(dweight * share);
    c.direct.factor = c.rstd * c.scale;
    c.direct.slope = c.direct.factor * (c.rstd * c.mean_dyh);
    c.is_direct = IsPlain(c.direct.factor) && IsPlain(c.rstd) &&
                  (c.mean_dyh == 0.0F || IsPlain(c.direct.slope));
    const auto slope = static_cast<double>(c.direct.slope);
    const auto factor = static_cast<double>(c.direct.factor);
    if constexpr (kMeansInOffset) {
      constexpr float kFewDeviations = 8.0F;
      c.is_direct = c.is_direct && fabsf(c.mean * c.rstd) <= kFewDeviations;
      const double mean = static_cast<double>(centre) + correction;
      c.direct.offset = static_cast<float>(mean * slope - mean_dy * factor);
    } else {
      c.direct.mean = c.mean;
      c.direct.mean_dy = c.mean_dy;
      c.direct.offset =
          static_cast<float>(correction * slope - static_cast<double>(c.mean_dy_low) * factor);
    }
    return c;
  }
  static __device__ void Write(const Segment& segment, uint32_t channel, bool like_x, double,
                               const Parameters&, const Coefficients&,
                               const Statistics& statistics) {
    StoreParameter<X>(segment.dweight, channel, like_x, statistics.dweight);
    StoreParameter<X>(segment.dbias, channel, like_x, statistics.dbias);
  }

  static __device__ __forceinline__ float ApplyDirect(const float (&inputs)[2], const Direct& c) {
    const float x = kMeansInOffset ? inputs[0] : inputs[0] - c.mean;
    const float dy = kMeansInOffset ? inputs[1] : inputs[1] - c.mean_dy;
    return fmaf(dy, c.factor, fmaf(x, -c.slope, c.offset));
  }
  /// (dy - mean(dy) - h * mean(dy * h)) * rstd * weight
  static __device__ __forceinline__ float Apply(const float (&inputs)[2], const Coefficients& c) {
    const float h = ((inputs[0] - c.mean) - c.correction) * c.rstd;
    const float centred = (inputs[1] - c.mean_dy) - c.mean_dy_low;
    return fmaf(-h, c.mean_dyh, centred) * c.rstd * c.scale;
  }
};

/// Granule u of every tensor, element by element: apply(inputs, element).
template <typename X, typename Op, int kTensors, int kGranules, typename Apply>
__device__ __forceinline__ uint4 MapGranule(const uint4 (&raw)[kTensors][kGranules], int u,
                                            Apply&& apply) {
  float in[kTensors][Op::kElements];
#pragma unroll
  for (int t = 0; t < kTensors; ++t) WideGranule<X>::Widen(raw[t][u], in[t]);
  float out[Op::kElements];
#pragma unroll
  for (int i = 0; i < Op::kElements; ++i) {
    float inputs[kTensors];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) inputs[t] = in[t][i];
    out[i] = apply(inputs, i);
  }
  return WideGranule<X>::Narrow(out);
}

}  // namespace norm_device
