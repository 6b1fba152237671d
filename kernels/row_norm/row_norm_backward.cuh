// RMSNorm and LayerNorm backward.
// Register kernels, persistent: x and dy read once, dx written once; dweight and dbias of this
// thread's columns add up in compensated registers over the rows of the block and leave as one f64
// partial row per block (FinalizeKernel adds them). Rows too long for that leave mean and rstd for
// the column kernel, which reads x and dy again. Streaming kernels: x and dy are read again from
// cache in each pass. One reduction a row when statistics are given (RMSNorm 1 sum; LayerNorm 3: g,
// g * d, d), else those of forward before it.
#pragma once

#include <cstdint>

#include "primitives/compensated_sum.cuh"
#include "primitives/element_access.cuh"
#include "primitives/moments.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_device.h"

namespace norm_device {

/// Statistics of one row. The centred value of x is (x - mean) - mean_correction.
template <typename C>
struct RowStats {
  C mean = 0;
  C mean_correction = 0;
  C rstd = 0;
};

/// What the row subtracts from its gradients: mean(g), as a pair since dx is what is left of g, and
/// mean(g * h).
template <typename C>
struct RowMeans {
  C g = 0;
  C g_low = 0;
  C gh = 0;
};

/// From the sums of g * d, g and d, where d is the centred x as far as it is known: d's own mean is
/// what a rounded mean left, and is taken off here.
template <RowKind kKind, typename C, int K>
__device__ RowMeans<C> FinishRow(const double (&totals)[K], double share, RowStats<C>& stats) {
  RowMeans<C> means;
  double mean_gd = totals[0] * share;
  if constexpr (kKind == RowKind::kLayer) {
    const double mean_g = totals[1] * share;
    const double correction = totals[2] * share;
    mean_gd -= correction * mean_g;
    means.g = static_cast<C>(mean_g);
    means.g_low = static_cast<C>(mean_g - static_cast<double>(means.g));
    stats.mean_correction += static_cast<C>(correction);
  }
  means.gh = static_cast<C>(mean_gd) * stats.rstd;
  return means;
}

template <RowKind kKind, typename C>
__device__ C Centred(C x, const RowStats<C>& stats) {
  return kKind == RowKind::kLayer ? (x - stats.mean) - stats.mean_correction : x;
}

/// weight + weight_offset of V columns; 1 where there is no weight.
template <typename Pair, int V, typename C>
__device__ void LoadScale(const RowBackwardParams& p, int64_t column, C (&scale)[V]) {
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
__device__ void StoreInputGradient(const RowBackwardParams& p, int64_t offset, int64_t column,
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
    C gradient = dy.Wide(i) * scale[i];
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

/// Per-thread sums of its columns over rows; empty where the column kernel does it.
template <typename C, int kElements, bool kParameterGradients>
struct ColumnSums {
  CompensatedSum<C> dweight[kElements];
  CompensatedSum<C> dbias[kElements];
};
template <typename C, int kElements>
struct ColumnSums<C, kElements, false> {};

/// Adds up the columns of the warps of a block, which own rows each, in order; the block leaves one
/// partial row.
template <int V, typename C, int kElements, int kWarps>
__device__ void StoreSharedColumns(double* partials, const CompensatedSum<C> (&sums)[kElements],
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

template <typename Pair, RowKind kKind, int V, int kElements, typename Row,
          bool kParameterGradients>
__global__ void __launch_bounds__(Row::kSharesBlock ? kWarpRowThreads : kMaxBlockRowThreads)
    RowBackwardRegisters(const RowBackwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  constexpr int kGranules = kElements / V;
  __shared__ typename Row::template Scratch<C> scratch;
  Row owner;
  ColumnSums<C, kElements, kParameterGradients> sums;
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
      if (kKind == RowKind::kLayer) {
        C sum[1] = {C(0)};
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
#pragma unroll
          for (int i = 0; i < V; ++i) sum[0] += x[g].Wide(i);
        }
        double total[1];
        owner.template Sum<C>(sum, total, scratch);
        stats.mean = static_cast<C>(total[0] * share);
        C deviation[1] = {C(0)};
#pragma unroll
        for (int g = 0; g < kGranules; ++g) {
          if ((g * owner.threads() + owner.thread()) * V < hidden_size) {
#pragma unroll
            for (int i = 0; i < V; ++i) deviation[0] += x[g].Wide(i) - stats.mean;
          }
        }
        owner.template Sum<C>(deviation, total, scratch);
        stats.mean_correction = static_cast<C>(total[0] * share);
      }
      C squares[1] = {C(0)};
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
        if ((g * owner.threads() + owner.thread()) * V < hidden_size) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const C centred = Centred<kKind>(x[g].Wide(i), stats);
            squares[0] = fma(centred, centred, squares[0]);
          }
        }
      }
      double total[1];
      owner.template Sum<C>(squares, total, scratch);
      stats.rstd = ReciprocalDeviation(static_cast<C>(total[0] * share), p.eps);
    }

    // g * d, g and d, where d = x - mean as far as it is known before the correction below.
    constexpr int kSums = kKind == RowKind::kLayer ? 3 : 1;
    C reduced[kSums] = {};
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      if (column < hidden_size) {
        C scale[V];
        LoadScale<Pair, V>(p, column, scale);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const C d = Centred<kKind>(x[g].Wide(i), stats);
          const C gradient = dy[g].Wide(i) * scale[i];
          reduced[0] = fma(gradient, d, reduced[0]);
          if constexpr (kKind == RowKind::kLayer) {
            reduced[1] += gradient;
            reduced[2] += d;
          }
        }
      }
    }
    double totals[kSums];
    owner.template Sum<double>(reduced, totals, scratch);
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
        if constexpr (kParameterGradients) {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const C h = Centred<kKind>(x[g].Wide(i), stats) * stats.rstd;
            sums.dweight[g * V + i].Add(dy[g].Wide(i) * h);
            if (kKind == RowKind::kLayer) sums.dbias[g * V + i].Add(dy[g].Wide(i));
          }
        }
      }
    }
  }

  if constexpr (kParameterGradients && Row::kSharesBlock) {
    __shared__ double totals[kWarpRowThreads / kWarpThreads][kElements * kWarpThreads];
    StoreSharedColumns<V>(p.dweight_partials, sums.dweight, totals, hidden_size);
    if (kKind == RowKind::kLayer)
      StoreSharedColumns<V>(p.dbias_partials, sums.dbias, totals, hidden_size);
  } else if constexpr (kParameterGradients) {
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
__global__ void __launch_bounds__(kMaxBlockRowThreads)
    RowBackwardStreaming(const RowBackwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  __shared__ BlockRow::Scratch<double> scratch;
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
      // As in the streaming forward.
      if (kKind == RowKind::kLayer) {
        double sum[1] = {0.0};
        for (int64_t column = first; column < p.hidden_size; column += step) {
          const Granule<X, V> x = LoadGranule<X, V>(x_row + column, p.aligned);
#pragma unroll
          for (int i = 0; i < V; ++i) sum[0] += static_cast<double>(x.Wide(i));
        }
        double total[1];
        owner.template Sum<double>(sum, total, scratch);
        stats.mean = static_cast<C>(total[0] * share);
      }
      double moments[2] = {0.0, 0.0};
      for (int64_t column = first; column < p.hidden_size; column += step) {
        const Granule<X, V> x = LoadGranule<X, V>(x_row + column, p.aligned);
        C deviation_sum = 0;
        C square_sum = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const C deviation = Centred<kKind>(x.Wide(i), stats);
          deviation_sum += deviation;
          square_sum = fma(deviation, deviation, square_sum);
        }
        moments[0] += static_cast<double>(deviation_sum);
        moments[1] += static_cast<double>(square_sum);
      }
      double totals[2];
      owner.template Sum<double>(moments, totals, scratch);
      double variance = totals[1] * share;
      if (kKind == RowKind::kLayer) {
        const double correction = totals[0] * share;
        stats.mean_correction = static_cast<C>(correction);
        if (!isnan(variance)) variance = fmax(variance - correction * correction, 0.0);
      }
      stats.rstd = ReciprocalDeviation(static_cast<C>(variance), p.eps);
    }

    constexpr int kSums = kKind == RowKind::kLayer ? 3 : 1;
    double reduced[kSums] = {};
    for (int64_t column = first; column < p.hidden_size; column += step) {
      const Granule<X, V> x = LoadGranule<X, V>(x_row + column, p.aligned);
      const Granule<X, V> dy = LoadGranule<X, V>(dy_row + column, p.aligned);
      C scale[V];
      LoadScale<Pair, V>(p, column, scale);
      C granule_sums[kSums] = {};
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const C d = Centred<kKind>(x.Wide(i), stats);
        const C gradient = dy.Wide(i) * scale[i];
        granule_sums[0] = fma(gradient, d, granule_sums[0]);
        if constexpr (kKind == RowKind::kLayer) {
          granule_sums[1] += gradient;
          granule_sums[2] += d;
        }
      }
#pragma unroll
      for (int k = 0; k < kSums; ++k) reduced[k] += static_cast<double>(granule_sums[k]);
    }
    double totals[kSums];
    owner.template Sum<double>(reduced, totals, scratch);
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
const void* SelectRowBackward(RowMethod method) {
  constexpr bool kIsF64 = sizeof(ComputeOf<typename Pair::Activation>) == 8;
  constexpr int kWide = WideRowElements(kIsF64, V > 1);
  switch (method) {
    case RowMethod::kWarpRegisters:
      return reinterpret_cast<const void*>(
          &RowBackwardRegisters<Pair, kKind, V, kNarrowRowElements, WarpRow, true>);
    case RowMethod::kBlockNarrow:
      return reinterpret_cast<const void*>(
          &RowBackwardRegisters<Pair, kKind, V, kNarrowRowElements, BlockRow, true>);
    case RowMethod::kBlockMedium:
      // Not for single elements or f64: they spill.
      if constexpr (!kIsF64 && V > 1) {
        return reinterpret_cast<const void*>(
            &RowBackwardRegisters<Pair, kKind, V, kMediumRowElements, BlockRow, true>);
      }
      break;
    case RowMethod::kBlockWide:
      if constexpr (!kIsF64) {
        return reinterpret_cast<const void*>(
            &RowBackwardRegisters<Pair, kKind, V, kWide, BlockRow, false>);
      }
      break;
    case RowMethod::kBlockStreaming:
      return reinterpret_cast<const void*>(&RowBackwardStreaming<Pair, kKind, V>);
  }
  return nullptr;
}

template <typename Pair>
const void* RowBackwardKernel(RowKind kind, RowMethod method, bool wide) {
  constexpr int kWideV = kWideElements<typename Pair::Activation>;
  if (kind == RowKind::kRms) {
    return wide ? SelectRowBackward<Pair, RowKind::kRms, kWideV>(method)
                : SelectRowBackward<Pair, RowKind::kRms, 1>(method);
  }
  return wide ? SelectRowBackward<Pair, RowKind::kLayer, kWideV>(method)
              : SelectRowBackward<Pair, RowKind::kLayer, 1>(method);
}

}  // namespace norm_device
