// BatchNorm backward.
// (1) gradient sums: x and dy read once; per thread in f32 over a tile, then in f64 over tiles,
// threads and chunks. (2) channel gradients: one warp a channel adds its chunks up in a fixed
// order. (3) input gradient: x and dy read again, dx written.
// With running statistics (1) and (2) run only when dweight or dbias is wanted.
#include <cstdint>

#include "batch_norm/batch_norm_device.h"
#include "batch_norm/batch_norm_planes.cuh"
#include "primitives/element_access.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {
namespace {

/// Sums of dy, dy * d and d.
template <typename T>
struct GradientSums {
  T dy = 0;
  T dyd = 0;
  T d = 0;

  __device__ void Add(T x_centred, T gradient) {
    dy += gradient;
    dyd = fma(gradient, x_centred, dyd);
    d += x_centred;
  }
  template <typename Other>
  __device__ void Add(const GradientSums<Other>& other) {
    dy += static_cast<T>(other.dy);
    dyd += static_cast<T>(other.dyd);
    d += static_cast<T>(other.d);
  }
};

template <typename X, int V, typename Owner>
__global__ void __launch_bounds__(kBatchThreads) PlaneGradientSums(const GradientSumsParams p) {
  using C = ComputeOf<X>;
  constexpr int kGranules = kBatchTileElements / V;
  __shared__ typename Owner::Scratch scratch;
  Owner owner;
  const int64_t tile_values = static_cast<int64_t>(owner.threads()) * kBatchTileElements;
  const int64_t items = p.shape.channels * p.chunks.chunks;
  const int64_t item_step = static_cast<int64_t>(gridDim.x) * owner.rows_per_block();
  for (int64_t item =
           static_cast<int64_t>(blockIdx.x) * owner.rows_per_block() + owner.row_in_block();
       item < items; item += item_step) {
    const int64_t channel = item / p.chunks.chunks;
    const int64_t chunk = item % p.chunks.chunks;
    const int64_t first = chunk * p.chunks.chunk_values;
    const int64_t end = min(p.shape.values, first + p.chunks.chunk_values);
    const C mean = static_cast<const C*>(p.coefficients.mean)[channel];
    const C correction = static_cast<const C*>(p.coefficients.mean_correction)[channel];
    PlaneCursor cursor(p.shape, channel, first + owner.thread() * V,
                       static_cast<int64_t>(owner.threads()) * V);
    GradientSums<double> sums;
    for (int64_t tile = first; tile < end; tile += tile_values) {
      const int64_t left = end - tile;
      GradientSums<C> of_tile;
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if ((static_cast<int64_t>(g) * owner.threads() + owner.thread()) * V < left) {
          const auto x =
              LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + cursor.offset(), p.aligned);
          const auto dy = LoadGranule<X, V>(
              static_cast<const StorageOf<X>*>(p.dy) + cursor.offset(), p.aligned);
#pragma unroll
          for (int i = 0; i < V; ++i) of_tile.Add((x.Wide(i) - mean) - correction, dy.Wide(i));
        }
        cursor.Advance();
      }
      sums.Add(of_tile);
    }
    const double values[3] = {sums.dy, sums.dyd, sums.d};
    double totals[3];
    owner.template Sum<double>(values, totals, scratch);
    if (owner.thread() == 0) {
      const int64_t slot = channel * p.chunks.channel_stride + chunk * p.chunks.chunk_stride;
      p.sums_dy[slot] = totals[0];
      p.sums_dyd[slot] = totals[1];
      p.sums_d[slot] = totals[2];
    }
  }
}

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) RowGradientSums(const GradientSumsParams p) {
  using C = ComputeOf<X>;
  __shared__ double shared[3][kBatchThreads];
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  const bool inside = channel < p.shape.channels;
  const int64_t first = blockIdx.y * p.chunks.chunk_values;
  const int64_t end = min(p.shape.values, first + p.chunks.chunk_values);
  const int64_t row_step = blockDim.y;
  GradientSums<double> sums[V];
  if (inside) {
    ChannelValues<C, V> mean;
    ChannelValues<C, V> correction;
    mean.Load(p.coefficients.mean, channel);
    correction.Load(p.coefficients.mean_correction, channel);
    for (int64_t row = first + threadIdx.y; row < end; row += row_step * kSpatialTileRows) {
      GradientSums<C> of_tile[V];
#pragma unroll
      for (int r = 0; r < kSpatialTileRows; ++r) {
        if (row + r * row_step < end) {
          const int64_t offset = (row + r * row_step) * p.shape.channels + channel;
          const auto x =
              LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
          const auto dy =
              LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.dy) + offset, p.aligned);
#pragma unroll
          for (int i = 0; i < V; ++i) {
            of_tile[i].Add((x.Wide(i) - mean[i]) - correction[i], dy.Wide(i));
          }
        }
      }
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i].Add(of_tile[i]);
    }
  }
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    shared[0][slot] = sums[i].dy;
    shared[1][slot] = sums[i].dyd;
    shared[2][slot] = sums[i].d;
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
      double totals[3] = {};
      for (int y = 0; y < blockDim.y; ++y) {
#pragma unroll
        for (int k = 0; k < 3; ++k) totals[k] += shared[k][y * blockDim.x + threadIdx.x];
      }
      const int64_t out =
          (channel + i) * p.chunks.channel_stride + blockIdx.y * p.chunks.chunk_stride;
      p.sums_dy[out] = totals[0];
      p.sums_dyd[out] = totals[1];
      p.sums_d[out] = totals[2];
    }
    __syncthreads();
  }
}

template <typename Pair>
__global__ void __launch_bounds__(kBatchThreads) ChannelGradients(const ChannelGradientsParams p) {
  using W = typename Pair::Weight;
  using C = ComputeOf<typename Pair::Activation>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
       channel < p.channels; channel += step) {
    double sums[3] = {};
    for (int64_t chunk = threadIdx.x; chunk < p.chunks.chunks; chunk += kWarpThreads) {
      const int64_t slot = channel * p.chunks.channel_stride + chunk * p.chunks.chunk_stride;
      sums[0] += p.sums_dy[slot];
      sums[1] += p.sums_dyd[slot];
      sums[2] += p.sums_d[slot];
    }
    LaneSum<kWarpThreads>(sums);
    if (threadIdx.x != 0) continue;

    // An empty channel has zero gradients and nothing else to write.
    const double share = p.values > 0 ? 1.0 / static_cast<double>(p.values) : 0.0;
    double dweight = 0.0;
    if (p.values > 0) {
      const double rstd = static_cast<double>(static_cast<const C*>(p.coefficients.rstd)[channel]);
      // The mean of d is what rounding left of the batch mean; running statistics are taken as
      // they are.
      const double correction = p.statistics_of_batch ? sums[2] * share : 0.0;
      dweight = rstd * (sums[1] - correction * sums[0]);
      static_cast<C*>(p.coefficients.mean_correction)[channel] += static_cast<C>(correction);
      const double mean_dy = sums[0] * share;
      const C mean_dy_high = static_cast<C>(mean_dy);
      static_cast<C*>(p.coefficients.mean_dy)[channel] = mean_dy_high;
      static_cast<C*>(p.coefficients.mean_dy_low)[channel] =
          static_cast<C>(mean_dy - static_cast<double>(mean_dy_high));
      static_cast<C*>(p.coefficients.mean_dyh)[channel] = static_cast<C>(dweight * share);
    }
    if (p.dweight != nullptr) {
      static_cast<StorageOf<W>*>(p.dweight)[channel] =
          Element<W>::Narrow(static_cast<ComputeOf<W>>(dweight));
    }
    if (p.dbias != nullptr) {
      static_cast<StorageOf<W>*>(p.dbias)[channel] =
          Element<W>::Narrow(static_cast<ComputeOf<W>>(sums[0]));
    }
  }
}

/// dx = (dy - mean(dy) - h * mean(dy * h)) * rstd * weight; without the means where the statistics
/// do not depend on x.
template <typename X, int V, int kChannels>
struct InputGradient {
  using C = ComputeOf<X>;
  ChannelValues<C, kChannels> mean;
  ChannelValues<C, kChannels> correction;
  ChannelValues<C, kChannels> rstd;
  ChannelValues<C, kChannels> scale;
  ChannelValues<C, kChannels> mean_dy;
  ChannelValues<C, kChannels> mean_dy_low;
  ChannelValues<C, kChannels> mean_dyh;

  __device__ void Load(const InputGradientParams& p, int64_t channel) {
    rstd.Load(p.coefficients.rstd, channel);
    scale.Load(p.coefficients.scale, channel);
    if (!p.statistics_of_batch) return;
    mean.Load(p.coefficients.mean, channel);
    correction.Load(p.coefficients.mean_correction, channel);
    mean_dy.Load(p.coefficients.mean_dy, channel);
    mean_dy_low.Load(p.coefficients.mean_dy_low, channel);
    mean_dyh.Load(p.coefficients.mean_dyh, channel);
  }
  __device__ void Apply(const InputGradientParams& p, int64_t offset) const {
    Granule<X, V> dy =
        LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.dy) + offset, p.aligned);
    C gradient[V];
#pragma unroll
    for (int i = 0; i < V; ++i) gradient[i] = dy.Wide(i);
    if (p.statistics_of_batch) {
      const auto x = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const C h = ((x.Wide(i) - mean[i]) - correction[i]) * rstd[i];
        gradient[i] = fma(-h, mean_dyh[i], (gradient[i] - mean_dy[i]) - mean_dy_low[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      dy.values[i] = Element<X>::Narrow(gradient[i] * rstd[i] * scale[i]);
    }
    StoreGranule<X, V>(static_cast<StorageOf<X>*>(p.dx) + offset, dy, p.aligned);
  }
};

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) InputGradientPlanes(const InputGradientParams p) {
  InputGradient<X, V, 1> input_gradient;
  ForEachPlaneGranule<V>(
      p.shape, p.segment_values, [&](int64_t channel) { input_gradient.Load(p, channel); },
      [&](int64_t offset) { input_gradient.Apply(p, offset); });
}

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) InputGradientRows(const InputGradientParams p) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (channel >= p.shape.channels) return;
  InputGradient<X, V, V> input_gradient;
  input_gradient.Load(p, channel);
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
       row < p.shape.values; row += step) {
    input_gradient.Apply(p, row * p.shape.channels + channel);
  }
}

}  // namespace

template <typename X>
const void* GradientSumsKernel(ChannelMajor major, ChunkOwner owner, int granule) {
  return SelectGranule<X>(major, granule, [&](auto constant) -> const void* {
    constexpr int kV = decltype(constant)::value;
    if (major == ChannelMajor::kRows) {
      if constexpr (kV <= 4) return reinterpret_cast<const void*>(&RowGradientSums<X, kV>);
    }
    return owner == ChunkOwner::kWarp
               ? reinterpret_cast<const void*>(&PlaneGradientSums<X, kV, WarpRow>)
               : reinterpret_cast<const void*>(&PlaneGradientSums<X, kV, BlockRow>);
  });
}

template <typename Pair>
const void* ChannelGradientsKernel() {
  return reinterpret_cast<const void*>(&ChannelGradients<Pair>);
}

template <typename X>
const void* InputGradientKernel(ChannelMajor major, int granule) {
  return SelectGranule<X>(major, granule, [&](auto constant) -> const void* {
    constexpr int kV = decltype(constant)::value;
    if (major == ChannelMajor::kRows) {
      if constexpr (kV <= 4) return reinterpret_cast<const void*>(&InputGradientRows<X, kV>);
    }
    return reinterpret_cast<const void*>(&InputGradientPlanes<X, kV>);
  });
}

template const void* GradientSumsKernel<F32>(ChannelMajor, ChunkOwner, int);
template const void* GradientSumsKernel<F16>(ChannelMajor, ChunkOwner, int);
template const void* GradientSumsKernel<BF16>(ChannelMajor, ChunkOwner, int);
template const void* GradientSumsKernel<F64>(ChannelMajor, ChunkOwner, int);
template const void* InputGradientKernel<F32>(ChannelMajor, int);
template const void* InputGradientKernel<F16>(ChannelMajor, int);
template const void* InputGradientKernel<BF16>(ChannelMajor, int);
template const void* InputGradientKernel<F64>(ChannelMajor, int);
template const void* ChannelGradientsKernel<ElementPair<F32, F32>>();
template const void* ChannelGradientsKernel<ElementPair<F16, F16>>();
template const void* ChannelGradientsKernel<ElementPair<F16, F32>>();
template const void* ChannelGradientsKernel<ElementPair<BF16, BF16>>();
template const void* ChannelGradientsKernel<ElementPair<BF16, F32>>();
template const void* ChannelGradientsKernel<ElementPair<F64, F64>>();
template const void* ChannelGradientsKernel<ElementPair<F64, F32>>();

}  // namespace norm_device
