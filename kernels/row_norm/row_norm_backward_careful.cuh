// Row backward where the ring kernels do not go: f64, and rows longer than a cluster holds.
// Register kernels (f64), persistent: x and dy read once; dweight and dbias of this thread's
// columns add up in registers over the rows of the block and leave as one f64 partial row per
// block. Streaming kernels: x and dy are read again from cache in each pass, and mean and rstd are
// left for the column kernel, which reads x and dy once more. One reduction a row when statistics
// are given (RMSNorm 1 sum; LayerNorm 3: g * d, g, x), else those of forward before it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/compensated_sum.cuh"
#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

/// What the row subtracts from its gradients: mean(g), as a pair since dx is what is left of g, and
/// mean(g * h).
template <typename C>
struct RowMeans {
  C g = 0;
  C g_low = 0;
  C gh = 0;
};

/// Rounded on its own: g must be the same number where it is averaged and where the mean is taken
/// off, so the compiler must not fold the product into either.
__device__ inline float Multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double Multiply(double a, double b) { return __dmul_rn(a, b); }

/// A thread's part of the sums that a row's gradient needs: g * d and g, where d is the centred x
/// as far as the mean is known; and what completes the mean: x in f32, where the exact sum gives
/// it, d in f64.
template <RowKind kKind, typename C>
class RowSums {
 public:
  __device__ void Add(C x, C g, const RowStats<C>& stats) {
    const C d = Centred<kKind>(x, stats);
    gd_ = fma(g, d, gd_);
    if (kKind == RowKind::kLayer) {
      g_ += g;
      mean_.Add(std::is_same_v<C, double> ? d : x);
    }
  }
  __device__ void Store(double (&sums)[1]) const { sums[0] = static_cast<double>(gd_); }
  __device__ void Store(double (&sums)[3]) const {
    sums[0] = static_cast<double>(gd_);
    sums[1] = static_cast<double>(g_);
    sums[2] = mean_.Total();
  }

 private:
  C gd_ = 0;
  C g_ = 0;
  ExactSum<C> mean_;
};

/// The means from the totals of RowSums; completes stats.mean_correction, whether the mean came
/// from the caller, rounded, or from here.
template <RowKind kKind, typename C, int K>
__device__ RowMeans<C> FinishRow(const double (&totals)[K], double share, RowStats<C>& stats) {
  RowMeans<C> means;
  double mean_gd = totals[0] * share;
  if constexpr (kKind == RowKind::kLayer) {
    const double mean_g = totals[1] * share;
    double correction = totals[2] * share;
    if constexpr (!std::is_same_v<C, double>) {
      correction -= static_cast<double>(stats.mean) + static_cast<double>(stats.mean_correction);
    }
    mean_gd -= correction * mean_g;
    SplitMean(mean_g, means.g, means.g_low);
    stats.mean_correction += static_cast<C>(correction);
  }
  means.gh = static_cast<C>(mean_gd * static_cast<double>(stats.rstd));
  return means;
}

/// weight + weight_offset of V columns; 1 where there is no weight.
template <typename Pair, int V, typename C>
__device__ void LoadScale(const CarefulBackwardParams& p, int64_t column, C (&scale)[V]) {
  using W = typename Pair::Weight;
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] = C(1);
  if (p.weight == nullptr) return;
  const auto weight =
      LoadGranule<W, V>(static_cast<const StorageOf<W>*>(p.weight) + column, p.aligned);
#pragma unroll
  for (int i = 0; i < V; ++i)
    scale[i] = static_cast<C>(weight.Wide(i)) + static_cast<C>(p.weight_offset);
}

/// rstd * (g - mean(g) - h * mean(g * h)) + dresidual_sum, rounded once, of V columns.
template <typename Pair, RowKind kKind, int V, typename C>
__device__ void StoreInputGradient(const CarefulBackwardParams& p, int64_t offset, int64_t column,
                                   const Granule<typename Pair::Activation, V>& x,
                                   const Granule<typename Pair::Activation, V>& dy,
                                   const RowStats<C>& stats, const RowMeans<C>& means) {
  using X = typename Pair::Activation;
  C scale[V];
  LoadScale<Pair, V>(p, column, scale);
  Granule<X, V> dresidual = ZeroGranule<X, V>();
  if (p.dresidual_sum != nullptr) {
    dresidual =
        LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.dresidual_sum) + offset, p.aligned);
  }
  Granule<X, V> dx;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const C h = Centred<kKind>(x.Wide(i), stats) * stats.rstd;
    C gradient = Multiply(dy.Wide(i), scale[i]);
    if (kKind == RowKind::kLayer) gradient = (gradient - means.g) - means.g_low;
    gradient = fma(-h, means.gh, gradient) * stats.rstd;
    if (p.dresidual_sum != nullptr) gradient += dresidual.Wide(i);
    dx.values[i] = Element<X>::Narrow(gradient);
  }
  StoreGranule<X, V>(static_cast<StorageOf<X>*>(p.dx) + offset, dx, p.aligned);
}

template <RowKind kKind, typename C>
__device__ void StoreRowStatistics(const RowStatistics& statistics, int64_t row,
                                   const RowStats<C>& stats) {
  if (statistics.rstd == nullptr) return;
  static_cast<C*>(statistics.rstd)[row] = stats.rstd;
  if (kKind == RowKind::kLayer) {
    static_cast<C*>(statistics.mean)[row] = stats.mean;
    static_cast<C*>(statistics.mean_correction)[row] = stats.mean_correction;
  }
}

/// Per-thread sums of its columns over rows.
template <typename C, int kElements>
struct ColumnSums {
  CompensatedSum<C> dweight[kElements];
  CompensatedSum<C> dbias[kElements];
};

/// Adds up the columns of the warps of a block, which own rows each, in order; the block leaves one
/// partial row.
template <int V, typename Sum, int kElements, int kWarps>
__device__ void StoreSharedColumns(double* partials, const Sum (&sums)[kElements],
                                   double (&totals)[kWarps][kElements * kWarpThreads],
                                   int hidden_size) {
  if (partials == nullptr) return;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int column = (e / V * kWarpThreads + threadIdx.x % kWarpThreads) * V + e % V;
    totals[threadIdx.x / kWarpThreads][column] = sums[e].Total();
  }
  __syncthreads();
  for (int column = threadIdx.x; column < hidden_size; column += blockDim.x) {
    double total = totals[0][column];
    for (int warp = 1; warp < kWarps; ++warp) total += totals[warp][column];
    partials[blockIdx.x * static_cast<int64_t>(hidden_size) + column] = total;
  }
  __syncthreads();
}

template <typename Pair, RowKind kKind, int V, typename Row>
__global__ void __launch_bounds__(Row::kSharesBlock ? kCarefulWarpThreads : kCarefulMaxThreads)
    RowBackwardRegisters(const CarefulBackwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  constexpr int kElements = kCarefulElements;
  constexpr int kGranules = kElements / V;
  __shared__ typename Row::Scratch scratch;
  Row owner;
  ColumnSums<C, kElements> sums;
  const int hidden_size = static_cast<int>(p.hidden_size);
  const double share = 1.0 / static_cast<double>(hidden_size);
  const auto* x_data = static_cast<const StorageOf<X>*>(p.x);
  const auto* dy_data = static_cast<const StorageOf<X>*>(p.dy);

  const int64_t row_step = static_cast<int64_t>(gridDim.x) * owner.rows_per_block();
  for (int64_t row =
           static_cast<int64_t>(blockIdx.x) * owner.rows_per_block() + owner.row_in_block();
       row < p.rows; row += row_step) {
    const int64_t row_offset = row * p.hidden_size;
    Granule<X, V> x[kGranules];
    Granule<X, V> dy[kGranules];
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      const bool inside = column < hidden_size;
      x[g] =
          inside ? LoadGranule<X, V>(x_data + row_offset + column, p.aligned) : ZeroGranule<X, V>();
      dy[g] = inside ? LoadGranule<X, V>(dy_data + row_offset + column, p.aligned)
                     : ZeroGranule<X, V>();
    }

    RowStats<C> stats;
    if (p.rstd != nullptr) {
      stats.rstd = static_cast<const C*>(p.rstd)[row];
      if (kKind == RowKind::kLayer) stats.mean = static_cast<const C*>(p.mean)[row];
    } else {
      stats = HeldRowStats<kKind>(x, owner, scratch, hidden_size, p.eps);
    }

    constexpr int kSums = kKind == RowKind::kLayer ? 3 : 1;
    RowSums<kKind, C> row_sums;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      if (column < hidden_size) {
        C scale[V];
        LoadScale<Pair, V>(p, column, scale);
#pragma unroll
        for (int i = 0; i < V; ++i)
          row_sums.Add(x[g].Wide(i), Multiply(dy[g].Wide(i), scale[i]), stats);
      }
    }
    double thread_sums[kSums];
    row_sums.Store(thread_sums);
    double totals[kSums];
    owner.template Sum<double>(thread_sums, totals, scratch);
    const RowMeans<C> means = FinishRow<kKind>(totals, share, stats);
    if (owner.thread() == 0) StoreRowStatistics<kKind>(p.statistics, row, stats);

#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      if (column < hidden_size) {
        if (p.dx != nullptr) {
          StoreInputGradient<Pair, kKind, V>(p, row_offset + column, column, x[g], dy[g], stats,
                                             means);
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const C h = Centred<kKind>(x[g].Wide(i), stats) * stats.rstd;
          sums.dweight[g * V + i].Add(dy[g].Wide(i) * h);
          if (kKind == RowKind::kLayer) sums.dbias[g * V + i].Add(dy[g].Wide(i));
        }
      }
    }
  }

  if constexpr (Row::kSharesBlock) {
    __shared__ double totals[kCarefulWarpThreads / kWarpThreads][kElements * kWarpThreads];
    StoreSharedColumns<V>(p.dweight_partials, sums.dweight, totals, hidden_size);
    if (kKind == RowKind::kLayer)
      StoreSharedColumns<V>(p.dbias_partials, sums.dbias, totals, hidden_size);
  } else {
    const int64_t partial = blockIdx.x * p.hidden_size;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      if (column < hidden_size) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (p.dweight_partials != nullptr) {
            p.dweight_partials[partial + column + i] = sums.dweight[g * V + i].Total();
          }
          if (kKind == RowKind::kLayer && p.dbias_partials != nullptr) {
            p.dbias_partials[partial + column + i] = sums.dbias[g * V + i].Total();
          }
        }
      }
    }
  }
}

template <typename Pair, RowKind kKind, int V>
__global__ void __launch_bounds__(kCarefulMaxThreads)
    RowBackwardStreaming(const CarefulBackwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  __shared__ BlockRow::Scratch scratch;
  BlockRow owner;
  const double share = 1.0 / static_cast<double>(p.hidden_size);
  const int64_t first = static_cast<int64_t>(owner.thread()) * V;
  const int64_t step = static_cast<int64_t>(owner.threads()) * V;

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t row_offset = row * p.hidden_size;
    const auto* x_row = static_cast<const StorageOf<X>*>(p.x) + row_offset;
    const auto* dy_row = static_cast<const StorageOf<X>*>(p.dy) + row_offset;
    RowStats<C> stats;
    if (p.rstd != nullptr) {
      stats.rstd = static_cast<const C*>(p.rstd)[row];
      if (kKind == RowKind::kLayer) stats.mean = static_cast<const C*>(p.mean)[row];
    } else {
      stats = StreamedRowStats<kKind, X, V>(
          [&](int64_t column) { return LoadGranule<X, V>(x_row + column, p.aligned); }, x_row,
          owner, scratch, p.hidden_size, p.aligned, p.eps);
    }

    constexpr int kSums = kKind == RowKind::kLayer ? 3 : 1;
    double thread_sums[kSums] = {};
    ExactSum<double> thread_mean_sum;
    for (int64_t column = first; column < p.hidden_size; column += step) {
      const Granule<X, V> x = LoadGranule<X, V>(x_row + column, p.aligned);
      const Granule<X, V> dy = LoadGranule<X, V>(dy_row + column, p.aligned);
      C scale[V];
      LoadScale<Pair, V>(p, column, scale);
      RowSums<kKind, C> granule_sums;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        granule_sums.Add(x.Wide(i), Multiply(dy.Wide(i), scale[i]), stats);
      }
      double values[kSums];
      granule_sums.Store(values);
#pragma unroll
      for (int k = 0; k < kSums && k < 2; ++k) thread_sums[k] += values[k];
      if constexpr (kKind == RowKind::kLayer) thread_mean_sum.Add(values[2]);
    }
    if constexpr (kKind == RowKind::kLayer) thread_sums[2] = thread_mean_sum.Total();
    double totals[kSums];
    owner.template Sum<double>(thread_sums, totals, scratch);
    const RowMeans<C> means = FinishRow<kKind>(totals, share, stats);
    if (owner.thread() == 0) StoreRowStatistics<kKind>(p.statistics, row, stats);

    if (p.dx != nullptr) {
      for (int64_t column = first; column < p.hidden_size; column += step) {
        const Granule<X, V> x = LoadGranule<X, V>(x_row + column, p.aligned);
        const Granule<X, V> dy = LoadGranule<X, V>(dy_row + column, p.aligned);
        StoreInputGradient<Pair, kKind, V>(p, row_offset + column, column, x, dy, stats, means);
      }
    }
  }
}

template <typename Pair, RowKind kKind, int V>
const void* SelectCarefulBackward(RowBackwardMethod method) {
  if constexpr (sizeof(ComputeOf<typename Pair::Activation>) == 8) {
    if (method == RowBackwardMethod::kCarefulWarp) {
      return reinterpret_cast<const void*>(&RowBackwardRegisters<Pair, kKind, V, WarpRow>);
    }
    if (method == RowBackwardMethod::kCarefulBlock) {
      return reinterpret_cast<const void*>(&RowBackwardRegisters<Pair, kKind, V, BlockRow>);
    }
  }
  return method == RowBackwardMethod::kStreaming
             ? reinterpret_cast<const void*>(&RowBackwardStreaming<Pair, kKind, V>)
             : nullptr;
}

template <typename Pair>
const void* CarefulBackwardKernel(RowKind kind, RowBackwardMethod method, bool wide) {
  constexpr int kWideV = kWideElements<typename Pair::Activation>;
  if (kind == RowKind::kRms) {
    return wide ? SelectCarefulBackward<Pair, RowKind::kRms, kWideV>(method)
                : SelectCarefulBackward<Pair, RowKind::kRms, 1>(method);
  }
  return wide ? SelectCarefulBackward<Pair, RowKind::kLayer, kWideV>(method)
              : SelectCarefulBackward<Pair, RowKind::kLayer, 1>(method);
}

}  // namespace norm_device
