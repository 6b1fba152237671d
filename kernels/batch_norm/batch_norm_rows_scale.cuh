// BatchNorm inference of channel-last tensors, forward and backward, in one launch: a thread keeps
// the numbers of its channels in registers and walks down the rows.
#pragma once

#include "batch_norm/batch_norm_rows_device.h"
#include "batch_norm/batch_norm_rows_quad.cuh"
#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "primitives/packed_granule.cuh"

namespace norm_device {
namespace rows {

/// V channels of a thread. Forward: (x - mean) * rstd first, then weight: the product of x and
/// weight may overflow on its own.
template <typename X, int V, bool kBackward>
struct ChannelScale {
  float mean[V];
  float rstd[V];
  float scale[V];
  float shift[V];

  __device__ void Load(const RowsScaleParams& p, int channel, bool writes_rstd) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      rstd[i] = static_cast<float>(ReciprocalDeviation(p.running_var[channel + i], p.eps));
      scale[i] = LoadWeight<X>(p.weight, p.f32_weights, channel + i, 1.0F);
      if (!kBackward) {
        mean[i] = p.running_mean[channel + i];
        shift[i] = LoadWeight<X>(p.bias, p.f32_weights, channel + i, 0.0F);
      }
      if (writes_rstd) p.rstd[channel + i] = rstd[i];
    }
  }
  __device__ float Apply(float value, int i) const {
    if (kBackward) return value * rstd[i] * scale[i];
    return fmaf((value - mean[i]) * rstd[i], scale[i], shift[i]);
  }
};

template <typename X, int V, int U, bool kBackward, int T>
__global__ void __launch_bounds__(T) ScaleKernel(const RowsScaleParams p) {
  using Values = PackedGranule<X, V>;
  const int column = static_cast<int>(threadIdx.x) % p.columns;
  const int lane = static_cast<int>(threadIdx.x) / p.columns;
  const int channel = (static_cast<int>(blockIdx.y) * T + column) * V;
  if (lane >= p.lanes || channel >= p.channels) return;
  const int64_t tile_rows = static_cast<int64_t>(p.lanes) * U;
  const int64_t row_stride = static_cast<int64_t>(p.lanes) * p.channels;
  const int64_t first = blockIdx.x * tile_rows + lane;
  if (first >= p.rows) return;
  const int64_t left = (p.rows - first - 1) / p.lanes + 1;
  const int rows = static_cast<int>(left < U ? left : U);
  const StorageOf<X>* source =
      static_cast<const StorageOf<X>*>(p.source) + first * p.channels + channel;
  StorageOf<X>* destination =
      static_cast<StorageOf<X>*>(p.destination) + first * p.channels + channel;
  Values values[U];
  if (rows == U) {
#pragma unroll
    for (int u = 0; u < U; ++u) values[u] = Values::Load(source + u * row_stride, p.aligned);
  } else {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u < rows) values[u] = Values::Load(source + u * row_stride, p.aligned);
    }
  }
  ChannelScale<X, V, kBackward> scale;
  scale.Load(p, channel, !kBackward && p.rstd != nullptr && blockIdx.x == 0 && lane == 0);
#pragma unroll
  for (int u = 0; u < U; ++u) {
    float wide[V];
#pragma unroll
    for (int i = 0; i < V; ++i) wide[i] = scale.Apply(values[u].Wide(i), i);
    if (u < rows) Values::Rounded(wide).Store(destination + u * row_stride, p.aligned);
  }
}

}  // namespace rows
}  // namespace norm_device
