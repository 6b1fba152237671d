// BatchNorm forward.
// Training: (1) moments: x read once; tiles of a channel wait in registers between the sum, its
// correction and the squared deviations; tiles merge into chunks in f64. (2) channel statistics:
// one warp a channel merges its chunks in a fixed order. (3) normalize: x read again, y written.
// Inference: (2) from the running statistics, then (3).
#include <cstdint>

#include "batch_norm/batch_norm_deviations.cuh"
#include "batch_norm/batch_norm_device.h"
#include "batch_norm/batch_norm_planes.cuh"
#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {
namespace {

template <typename X>
inline constexpr int kTileElements = sizeof(ComputeOf<X>) == 8 ? kBatchTileElements / 2
                                                               : kBatchTileElements;

template <typename X, int V, typename Owner>
__global__ void __launch_bounds__(kBatchThreads) PlaneMoments(const MomentsParams p) {
  using C = ComputeOf<X>;
  constexpr int kGranules = kTileElements<X> / V;
  __shared__ typename Owner::Scratch scratch;
  Owner owner;
  const int64_t tile_values = static_cast<int64_t>(owner.threads()) * kTileElements<X>;
  const int64_t items = p.shape.channels * p.chunks.chunks;
  const int64_t item_step = static_cast<int64_t>(gridDim.x) * owner.rows_per_block();
  for (int64_t item =
           static_cast<int64_t>(blockIdx.x) * owner.rows_per_block() + owner.row_in_block();
       item < items; item += item_step) {
    const int64_t channel = item / p.chunks.chunks;
    const int64_t chunk = item % p.chunks.chunks;
    const int64_t first = chunk * p.chunks.chunk_values;
    const int64_t end = min(p.shape.values, first + p.chunks.chunk_values);
    const int64_t thread_first = first + owner.thread() * V;
    PlaneCursor cursor(p.shape, channel, thread_first, static_cast<int64_t>(owner.threads()) * V);
    Moments moments = {};
    for (int64_t tile = first; tile < end; tile += tile_values) {
      const int64_t left = end - tile;  // > 0; granules are inside while their number is below it
      Granule<X, V> x[kGranules];
      C sum[1] = {C(0)};
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        const bool inside = (static_cast<int64_t>(g) * owner.threads() + owner.thread()) * V < left;
        x[g] = inside ? LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + cursor.offset(),
                                          p.aligned)
                      : ZeroGranule<X, V>();
        cursor.Advance();
#pragma unroll
        for (int i = 0; i < V; ++i) sum[0] += x[g].Wide(i);
      }
      double total[1];
      const double count = static_cast<double>(min(left, tile_values));
      owner.template Sum<C>(sum, total, scratch);
      const C mean = GridMean<X>(total[0] / count);
      C deviation[1] = {C(0)};
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if ((static_cast<int64_t>(g) * owner.threads() + owner.thread()) * V < left) {
#pragma unroll
          for (int i = 0; i < V; ++i) deviation[0] += x[g].Wide(i) - mean;
        }
      }
      owner.template Sum<C>(deviation, total, scratch);
      const C correction = static_cast<C>(total[0] / count);
      C squares[1] = {C(0)};
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if ((static_cast<int64_t>(g) * owner.threads() + owner.thread()) * V < left) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const C centred = (x[g].Wide(i) - mean) - correction;
            squares[0] = fma(centred, centred, squares[0]);
          }
        }
      }
      owner.template Sum<C>(squares, total, scratch);
      Moments of_tile;
      of_tile.count = count;
      of_tile.mean = static_cast<double>(mean) + static_cast<double>(correction);
      of_tile.m2 = total[0];
      if (sizeof(C) == sizeof(float) && SquaresLeftF32(total[0], p.smallest_squares)) {
        double wide[1] = {0.0};
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
#pragma unroll
          for (int i = 0; i < V; ++i) wide[0] += static_cast<double>(x[g].Wide(i));
        }
        owner.template Sum<double>(wide, total, scratch);
        of_tile.mean = total[0] / count;
        wide[0] = 0.0;
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
          if ((static_cast<int64_t>(g) * owner.threads() + owner.thread()) * V < left) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
              const double centred = static_cast<double>(x[g].Wide(i)) - of_tile.mean;
              wide[0] = fma(centred, centred, wide[0]);
            }
          }
        }
        owner.template Sum<double>(wide, total, scratch);
        of_tile.m2 = total[0];
      }
      moments.Merge(of_tile);
    }
    if (owner.thread() == 0) {
      const int64_t slot = channel * p.chunks.channel_stride + chunk * p.chunks.chunk_stride;
      p.means[slot] = moments.mean;
      p.m2s[slot] = moments.m2;
    }
  }
}

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) RowMoments(const MomentsParams p) {
  using C = ComputeOf<X>;
  __shared__ Moments shared[kBatchThreads];
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  const bool inside = channel < p.shape.channels;
  const int64_t first = blockIdx.y * p.chunks.chunk_values;
  const int64_t end = min(p.shape.values, first + p.chunks.chunk_values);
  const int64_t row_step = blockDim.y;
  double count = 0.0;
  double means[V] = {};
  double m2s[V] = {};
  if (inside) {
    for (int64_t row = first + threadIdx.y; row < end; row += row_step * kSpatialTileRows) {
      Granule<X, V> x[kSpatialTileRows];
      const int64_t rows_left = (end - row - 1) / row_step + 1;
      const int tile_rows = static_cast<int>(min(rows_left, int64_t{kSpatialTileRows}));
#pragma unroll
      for (int r = 0; r < kSpatialTileRows; ++r) {
        if (r < tile_rows) {
          x[r] = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) +
                                       (row + r * row_step) * p.shape.channels + channel,
                                   p.aligned);
        }
      }
      const C tile_share = C(1) / static_cast<C>(tile_rows);
      const double total_count = count + tile_rows;
      const double share = tile_rows / total_count;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        C sum = 0;
#pragma unroll
        for (int r = 0; r < kSpatialTileRows; ++r) {
          if (r < tile_rows) sum += x[r].Wide(i);
        }
        const C mean = GridMean<X>(sum * tile_share);
        C deviation = 0;
#pragma unroll
        for (int r = 0; r < kSpatialTileRows; ++r) {
          if (r < tile_rows) deviation += x[r].Wide(i) - mean;
        }
        const C correction = deviation * tile_share;
        C squares = 0;
#pragma unroll
        for (int r = 0; r < kSpatialTileRows; ++r) {
          if (r < tile_rows) {
            const C centred = (x[r].Wide(i) - mean) - correction;
            squares = fma(centred, centred, squares);
          }
        }
        double tile_mean = static_cast<double>(mean) + static_cast<double>(correction);
        double tile_m2 = static_cast<double>(squares);
        if (sizeof(C) == sizeof(float) && SquaresLeftF32(tile_m2, p.smallest_squares)) {
          tile_mean = 0.0;
#pragma unroll
          for (int r = 0; r < kSpatialTileRows; ++r) {
            if (r < tile_rows) tile_mean += static_cast<double>(x[r].Wide(i));
          }
          tile_mean /= tile_rows;
          tile_m2 = 0.0;
#pragma unroll
          for (int r = 0; r < kSpatialTileRows; ++r) {
            if (r < tile_rows) {
              const double centred = static_cast<double>(x[r].Wide(i)) - tile_mean;
              tile_m2 = fma(centred, centred, tile_m2);
            }
          }
        }
        const double delta = tile_mean - means[i];
        means[i] += delta * share;
        m2s[i] += tile_m2 + delta * delta * count * share;
      }
      count = total_count;
    }
  }
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = 0; i < V; ++i) {
    Moments own;
    own.count = count;
    own.mean = means[i];
    own.m2 = m2s[i];
    shared[slot] = own;
    __syncthreads();
    if (threadIdx.y == 0 && inside) {
      for (int y = 1; y < blockDim.y; ++y) own.Merge(shared[y * blockDim.x + threadIdx.x]);
      const int64_t out =
          (channel + i) * p.chunks.channel_stride + blockIdx.y * p.chunks.chunk_stride;
      p.means[out] = own.mean;
      p.m2s[out] = own.m2;
    }
    __syncthreads();
  }
}

__device__ Moments MergeChunks(const ChannelStatisticsParams& p, int64_t channel) {
  Moments merged = {};
  for (int64_t chunk = threadIdx.x; chunk < p.chunks.chunks; chunk += kWarpThreads) {
    const int64_t slot = channel * p.chunks.channel_stride + chunk * p.chunks.chunk_stride;
    Moments of_chunk;
    of_chunk.count =
        static_cast<double>(min(p.chunks.chunk_values, p.values - chunk * p.chunks.chunk_values));
    of_chunk.mean = p.means[slot];
    of_chunk.m2 = p.m2s[slot];
    merged.Merge(of_chunk);
  }
#pragma unroll
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    Moments other;
    other.count = __shfl_down_sync(0xffffffffU, merged.count, offset);
    other.mean = __shfl_down_sync(0xffffffffU, merged.mean, offset);
    other.m2 = __shfl_down_sync(0xffffffffU, merged.m2, offset);
    merged.Merge(other);
  }
  return merged;
}

template <typename Pair>
__global__ void __launch_bounds__(kBatchThreads)
    ChannelStatistics(const ChannelStatisticsParams p) {
  using W = typename Pair::Weight;
  using C = ComputeOf<typename Pair::Activation>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
       channel < p.channels; channel += step) {
    double mean = 0.0;
    double variance = 0.0;
    C rstd = 0;
    if (p.source == StatisticsSource::kBatch) {
      // An empty channel has mean 0 and variance 0.
      const Moments merged = MergeChunks(p, channel);
      if (p.values > 0) {
        mean = merged.mean;
        variance = merged.m2 / static_cast<double>(p.values);
      }
      rstd = static_cast<C>(ReciprocalDeviation(variance, p.eps));
    } else if (p.source == StatisticsSource::kRunning) {
      mean = static_cast<double>(static_cast<const C*>(p.running_mean)[channel]);
      variance = static_cast<double>(static_cast<const C*>(p.running_var)[channel]);
      rstd = static_cast<C>(ReciprocalDeviation(variance, p.eps));
    } else {
      mean = static_cast<double>(static_cast<const C*>(p.given_mean)[channel]);
      rstd = static_cast<const C*>(p.given_rstd)[channel];
    }
    if (threadIdx.x != 0) continue;

    const C mean_high = static_cast<C>(mean);
    static_cast<C*>(p.coefficients.mean)[channel] = mean_high;
    static_cast<C*>(p.coefficients.mean_correction)[channel] =
        isfinite(mean) ? static_cast<C>(mean - static_cast<double>(mean_high)) : C(0);
    static_cast<C*>(p.coefficients.rstd)[channel] = rstd;
    static_cast<C*>(p.coefficients.scale)[channel] =
        p.weight == nullptr ? C(1)
                            : static_cast<C>(Element<W>::Widen(
                                  static_cast<const StorageOf<W>*>(p.weight)[channel]));
    if (p.coefficients.shift != nullptr) {
      static_cast<C*>(p.coefficients.shift)[channel] =
          p.bias == nullptr ? C(0)
                            : static_cast<C>(Element<W>::Widen(
                                  static_cast<const StorageOf<W>*>(p.bias)[channel]));
    }
    if (p.mean != nullptr) static_cast<C*>(p.mean)[channel] = mean_high;
    if (p.rstd != nullptr) static_cast<C*>(p.rstd)[channel] = rstd;
    if (p.new_running_mean != nullptr) {
      double running_mean = static_cast<double>(static_cast<const C*>(p.running_mean)[channel]);
      double running_var = static_cast<double>(static_cast<const C*>(p.running_var)[channel]);
      if (p.values > 0) {
        const double n = static_cast<double>(p.values);
        running_mean = (1.0 - p.momentum) * running_mean + p.momentum * mean;
        running_var = (1.0 - p.momentum) * running_var + p.momentum * (variance * (n / (n - 1.0)));
      }
      static_cast<C*>(p.new_running_mean)[channel] = static_cast<C>(running_mean);
      static_cast<C*>(p.new_running_var)[channel] = static_cast<C>(running_var);
    }
  }
}

/// (x - mean) * rstd first, then weight: the product of x and weight may overflow on its own.
template <typename X, int V, int kChannels>
struct Normalizer {
  using C = ComputeOf<X>;
  ChannelValues<C, kChannels> mean;
  ChannelValues<C, kChannels> correction;
  ChannelValues<C, kChannels> rstd;
  ChannelValues<C, kChannels> scale;
  ChannelValues<C, kChannels> shift;

  __device__ void Load(const ChannelCoefficients& c, int64_t channel) {
    mean.Load(c.mean, channel);
    correction.Load(c.mean_correction, channel);
    rstd.Load(c.rstd, channel);
    scale.Load(c.scale, channel);
    shift.Load(c.shift, channel);
  }
  __device__ void Apply(const NormalizeParams& p, int64_t offset) const {
    Granule<X, V> x = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const C h = ((x.Wide(i) - mean[i]) - correction[i]) * rstd[i];
      x.values[i] = Element<X>::Narrow(fma(h, scale[i], shift[i]));
    }
    StoreGranule<X, V>(static_cast<StorageOf<X>*>(p.y) + offset, x, p.aligned);
  }
};

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) NormalizePlanes(const NormalizeParams p) {
  Normalizer<X, V, 1> normalizer;
  ForEachPlaneGranule<V>(
      p.shape, p.segment_values, [&](int64_t channel) { normalizer.Load(p.coefficients, channel); },
      [&](int64_t offset) { normalizer.Apply(p, offset); });
}

template <typename X, int V>
__global__ void __launch_bounds__(kBatchThreads) NormalizeRows(const NormalizeParams p) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (channel >= p.shape.channels) return;
  Normalizer<X, V, V> normalizer;
  normalizer.Load(p.coefficients, channel);
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
       row < p.shape.values; row += step) {
    normalizer.Apply(p, row * p.shape.channels + channel);
  }
}

}  // namespace

template <typename X>
const void* MomentsKernel(ChannelMajor major, ChunkOwner owner, int granule) {
  return SelectGranule<X>(major, granule, [&](auto constant) -> const void* {
    constexpr int kV = decltype(constant)::value;
    if (major == ChannelMajor::kRows) {
      if constexpr (kV <= 4) return reinterpret_cast<const void*>(&RowMoments<X, kV>);
    }
    return owner == ChunkOwner::kWarp
               ? reinterpret_cast<const void*>(&PlaneMoments<X, kV, WarpRow>)
               : reinterpret_cast<const void*>(&PlaneMoments<X, kV, BlockRow>);
  });
}

template <typename Pair>
const void* ChannelStatisticsKernel() {
  return reinterpret_cast<const void*>(&ChannelStatistics<Pair>);
}

template <typename X>
const void* NormalizeKernel(ChannelMajor major, int granule) {
  return SelectGranule<X>(major, granule, [&](auto constant) -> const void* {
    constexpr int kV = decltype(constant)::value;
    if (major == ChannelMajor::kRows) {
      if constexpr (kV <= 4) return reinterpret_cast<const void*>(&NormalizeRows<X, kV>);
    }
    return reinterpret_cast<const void*>(&NormalizePlanes<X, kV>);
  });
}

template const void* MomentsKernel<F32>(ChannelMajor, ChunkOwner, int);
template const void* MomentsKernel<F16>(ChannelMajor, ChunkOwner, int);
template const void* MomentsKernel<BF16>(ChannelMajor, ChunkOwner, int);
template const void* MomentsKernel<F64>(ChannelMajor, ChunkOwner, int);
template const void* NormalizeKernel<F32>(ChannelMajor, int);
template const void* NormalizeKernel<F16>(ChannelMajor, int);
template const void* NormalizeKernel<BF16>(ChannelMajor, int);
template const void* NormalizeKernel<F64>(ChannelMajor, int);
template const void* ChannelStatisticsKernel<ElementPair<F32, F32>>();
template const void* ChannelStatisticsKernel<ElementPair<F16, F16>>();
template const void* ChannelStatisticsKernel<ElementPair<F16, F32>>();
template const void* ChannelStatisticsKernel<ElementPair<BF16, BF16>>();
template const void* ChannelStatisticsKernel<ElementPair<BF16, F32>>();
template const void* ChannelStatisticsKernel<ElementPair<F64, F64>>();
template const void* ChannelStatisticsKernel<ElementPair<F64, F32>>();

}  // namespace norm_device
