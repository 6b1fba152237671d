// Channel-last BatchNorm training: what a thread needs to turn its four channels into output.
#pragma once

#include "batch_norm/batch_norm_rows_device.h"
#include "batch_norm/batch_norm_rows_quad.cuh"
#include "batch_norm/batch_norm_rows_slots.cuh"

namespace norm_device {
namespace rows {

/// Forward: the mean, what f32 leaves of it times -rstd, rstd,
/// weight, bias.
struct ForwardCoefficients {
  float mean[4];
  float rest[4];
  float rstd[4];
  float scale[4];
  float shift[4];

  template <typename X>
  __device__ void LoadWeights(const RowsForwardParams& p, int channel, bool active) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      scale[c] = active ? LoadWeight<X>(p.weight, p.f32_weights, channel + c, 1.0F) : 1.0F;
      shift[c] = active ? LoadWeight<X>(p.bias, p.f32_weights, channel + c, 0.0F) : 0.0F;
    }
  }
  __device__ void Take(const RowsSlot (&totals)[4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const double whole = FirstOf(totals[c]);
      mean[c] = static_cast<float>(whole);
      rstd[c] = SecondFloatOf(totals[c]);
      const double left = isfinite(whole) ? whole - static_cast<double>(mean[c]) : 0.0;
      rest[c] = -static_cast<float>(left) * rstd[c];
    }
  }
  __device__ float Apply(float value, int c) const {
    return fmaf(fmaf(value - mean[c], rstd[c], rest[c]), scale[c], shift[c]);
  }
};

/// Backward: the mean, rstd, the means of dy * h and of dy, what
/// f32 leaves of the means in the sum, weight.
struct BackwardCoefficients {
  float mean[4];
  float rstd[4];
  float mean_dyh[4];
  float mean_dy[4];
  float rest[4];
  float scale[4];

  template <typename X>
  __device__ void LoadWeights(const RowsBackwardParams& p, int channel, bool active) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      scale[c] = active ? LoadWeight<X>(p.weight, p.f32_weights, channel + c, 1.0F) : 1.0F;
    }
  }
  __device__ void Take(const RowsSlot (&totals)[2][4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const double whole = FirstOf(totals[0][c]);
      const double whole_dy = FirstOf(totals[1][c]);
      mean[c] = static_cast<float>(whole);
      mean_dy[c] = static_cast<float>(whole_dy);
      rstd[c] = SecondFloatOf(totals[0][c]);
      mean_dyh[c] = SecondFloatOf(totals[1][c]);
      const double left = isfinite(whole) ? whole - static_cast<double>(mean[c]) : 0.0;
      const double left_dy = isfinite(whole_dy) ? whole_dy - static_cast<double>(mean_dy[c]) : 0.0;
      rest[c] = static_cast<float>(
          left * static_cast<double>(rstd[c]) * static_cast<double>(mean_dyh[c]) - left_dy);
    }
  }
  __device__ float Apply(float gradient, float value, int c) const {
    const float h = (value - mean[c]) * rstd[c];
    const float centred = (gradient - mean_dy[c]) + rest[c];
    return fmaf(-h, mean_dyh[c], centred) * rstd[c] * scale[c];
  }
};

}  // namespace rows
}  // namespace norm_device
