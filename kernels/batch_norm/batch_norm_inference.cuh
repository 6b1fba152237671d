// A channel's numbers in inference, and what they make of a value: the same in every layout.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_inference.h"
#include "batch_norm/batch_norm_ring.cuh"
#include "primitives/element_access.cuh"

namespace norm_device {

/// y = (x - mean) * factor + shift with factor = rstd * weight, or where that factor leaves the
/// range in which f32 keeps its digits (x - mean) * rstd first, which cannot overflow, and then
/// weight.
struct alignas(16) InferenceEntry {
  float mean;
  float factor;
  float shift;
  float weight;  // 0: it is in `factor`

  __device__ __forceinline__ bool IsDirect() const { return weight == 0.0F; }
  __device__ __forceinline__ float Apply(float value) const {
    return IsDirect() ? fmaf(value - mean, factor, shift)
                      : fmaf((value - mean) * factor, weight, shift);
  }
};

__device__ __forceinline__ uint32_t Quotient(uint32_t value, Divisor divisor) {
  return __umulhi(value, divisor.factor) >> divisor.shift;
}

/// 1 / sqrt(variance + eps) within rounding. The rounding of the sum and of the approximate root
/// are put right by one step of Newton's method on their exact remainders; sums near the ends of
/// f32's range are moved into it by a power of four.
__device__ __forceinline__ float InferenceRoot(float variance, const InferenceEps& eps) {
  constexpr float kSmallest = 1e-30F;
  constexpr float kLargest = 1e30F;
  const bool is_small = variance + eps.high < kSmallest;
  const bool is_large = variance + eps.high > kLargest;
  const float scale = is_small ? kInferenceScale : is_large ? 1.0F / kInferenceScale : 1.0F;
  const float high = is_small ? eps.scaled : eps.high * scale;
  const float low = is_small ? 0.0F : eps.low * scale;
  variance *= scale;
  const float sum = variance + high;
  const float from_high = sum - variance;
  const float lost = ((variance - (sum - from_high)) + (high - from_high)) + low;
  const float root = rsqrtf(sum);
  const float square = sum * root;
  float remainder = fmaf(-square, root, 1.0F);
  remainder = fmaf(-fmaf(sum, root, -square), root, remainder);
  remainder = fmaf(-lost * root, root, remainder);
  const float better = fmaf(0.5F * root, remainder, root);
  const float back = is_small ? kInferenceRootScale : is_large ? 1.0F / kInferenceRootScale : 1.0F;
  return (isnan(better) ? root : better) * back;  // 0 and infinity have no remainder
}

template <typename X>
__device__ __forceinline__ InferenceEntry LoadEntry(const InferenceChannels& channels,
                                                    uint32_t channel, bool weight_like_x,
                                                    bool writes_rstd) {
  const float mean = channels.mean == nullptr ? 0.0F : channels.mean[channel];
  const float variance = channels.variance[channel];
  const float weight = LoadParameter<X>(channels.weight, channel, weight_like_x, 1.0F);
  const float shift = LoadParameter<X>(channels.bias, channel, weight_like_x, 0.0F);
  const float rstd = InferenceRoot(variance, channels.eps);
  if (writes_rstd) channels.rstd[channel] = rstd;
  constexpr float kSmallest = 1e-18F;
  constexpr float kLargest = 1e18F;
  const float factor = rstd * weight;
  const bool plain = fabsf(factor) > kSmallest && fabsf(factor) < kLargest;
  if (plain || weight == 0.0F) return {mean, factor, shift, 0.0F};
  return {mean, rstd, shift, weight};
}

}  // namespace norm_device
