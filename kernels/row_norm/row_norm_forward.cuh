// RMSNorm and LayerNorm forward.
// Register kernels: x (and residual) read once, y (and the sum) written once; the row waits in
// registers, as it lies in memory, between the passes. RMSNorm: one reduction (squares). LayerNorm:
// two (mean, squares), three in f64 (row_norm_statistics.cuh). Streaming kernels: the row is read
// again from cache in each pass. Thread t of the T that own a row holds granules t, t + T, ...; T
// depends on hidden_size and dtype only.
#pragma once

#include <cstdint>

#include "primitives/element_access.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

/// Applies weight and bias to normalized values and stores them.
template <typename Pair, RowKind kKind, int V>
struct ForwardEpilogue {
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  using C = ComputeOf<X>;

  const RowForwardParams& p;
  C weight_offset;

  __device__ explicit ForwardEpilogue(const RowForwardParams& params)
      : p(params), weight_offset(static_cast<C>(params.weight_offset)) {}

  __device__ void Store(StorageOf<X>* y_row, int64_t column, const C (&normalized)[V]) const {
    C scale[V];
    C shift[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      scale[i] = C(1);
      shift[i] = C(0);
    }
    if (p.weight != nullptr) {
      const auto weight =
          LoadGranule<W, V>(static_cast<const StorageOf<W>*>(p.weight) + column, p.aligned);
#pragma unroll
      for (int i = 0; i < V; ++i) scale[i] = static_cast<C>(weight.Wide(i)) + weight_offset;
    }
    if (kKind == RowKind::kLayer && p.bias != nullptr) {
      const auto bias =
          LoadGranule<W, V>(static_cast<const StorageOf<W>*>(p.bias) + column, p.aligned);
#pragma unroll
      for (int i = 0; i < V; ++i) shift[i] = static_cast<C>(bias.Wide(i));
    }
    Granule<X, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      C h = normalized[i];
      if (p.round_normalized) h = Element<X>::Widen(Element<X>::Narrow(h));
      y.values[i] =
          Element<X>::Narrow(kKind == RowKind::kLayer ? fma(h, scale[i], shift[i]) : h * scale[i]);
    }
    StoreGranule<X, V>(y_row + column, y, p.aligned);
  }
};

/// x, or x + residual rounded to the type of x and stored as the sum.
template <typename X, int V>
__device__ Granule<X, V> LoadInput(const RowForwardParams& p, int64_t offset) {
  Granule<X, V> x = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
  if (p.residual != nullptr) {
    const auto residual =
        LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.residual) + offset, p.aligned);
#pragma unroll
    for (int i = 0; i < V; ++i) x.values[i] = Element<X>::Narrow(x.Wide(i) + residual.Wide(i));
    StoreGranule<X, V>(static_cast<StorageOf<X>*>(p.residual_sum) + offset, x, p.aligned);
  }
  return x;
}

template <RowKind kKind, typename C>
__device__ void StoreStatistics(const RowForwardParams& p, int64_t row, const RowStats<C>& stats) {
  if (kKind == RowKind::kLayer && p.mean != nullptr) {
    static_cast<C*>(p.mean)[row] = stats.mean + stats.mean_correction;
  }
  if (p.rstd != nullptr) static_cast<C*>(p.rstd)[row] = stats.rstd;
}

template <typename Pair, RowKind kKind, int V, int kElements, typename Row>
__global__ void __launch_bounds__(Row::kSharesBlock ? kWarpRowThreads : kMaxBlockRowThreads)
    RowForwardRegisters(const RowForwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  constexpr int kGranules = kElements / V;
  __shared__ typename Row::Scratch scratch;
  Row owner;
  const ForwardEpilogue<Pair, kKind, V> epilogue(p);
  const int hidden_size = static_cast<int>(p.hidden_size);

  const int64_t row_step = static_cast<int64_t>(gridDim.x) * owner.rows_per_block();
  for (int64_t row =
           static_cast<int64_t>(blockIdx.x) * owner.rows_per_block() + owner.row_in_block();
       row < p.rows; row += row_step) {
    const int64_t row_offset = row * p.hidden_size;
    Granule<X, V> x[kGranules];
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      x[g] = column < hidden_size ? LoadInput<X, V>(p, row_offset + column) : ZeroGranule<X, V>();
    }

    const RowStats<C> stats = HeldRowStats<kKind>(x, owner, scratch, hidden_size, p.eps);
    if (owner.thread() == 0) StoreStatistics<kKind>(p, row, stats);

    StorageOf<X>* y_row = static_cast<StorageOf<X>*>(p.y) + row_offset;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const int column = (g * owner.threads() + owner.thread()) * V;
      if (column < hidden_size) {
        C normalized[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
          normalized[i] = Centred<kKind>(x[g].Wide(i), stats) * stats.rstd;
        }
        epilogue.Store(y_row, column, normalized);
      }
    }
  }
}

template <typename Pair, RowKind kKind, int V>
__global__ void __launch_bounds__(kMaxBlockRowThreads)
    RowForwardStreaming(const RowForwardParams p) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  __shared__ BlockRow::Scratch scratch;
  BlockRow owner;
  const ForwardEpilogue<Pair, kKind, V> epilogue(p);
  const int64_t first = static_cast<int64_t>(owner.thread()) * V;
  const int64_t step = static_cast<int64_t>(owner.threads()) * V;
  // After the first pass the normalized values are those of the sum that this thread wrote itself.
  const auto* input =
      static_cast<const StorageOf<X>*>(p.residual != nullptr ? p.residual_sum : p.x);

  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t row_offset = row * p.hidden_size;
    const RowStats<C> stats = StreamedRowStats<kKind, X, V>(
        [&](int64_t column) { return LoadInput<X, V>(p, row_offset + column); }, input + row_offset,
        owner, scratch, p.hidden_size, p.aligned, p.eps);
    if (owner.thread() == 0) StoreStatistics<kKind>(p, row, stats);

    StorageOf<X>* y_row = static_cast<StorageOf<X>*>(p.y) + row_offset;
    for (int64_t column = first; column < p.hidden_size; column += step) {
      const Granule<X, V> x = LoadGranule<X, V>(input + row_offset + column, p.aligned);
      C normalized[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        normalized[i] = Centred<kKind>(x.Wide(i), stats) * stats.rstd;
      }
      epilogue.Store(y_row, column, normalized);
    }
  }
}

template <typename Pair, RowKind kKind, int V>
const void* SelectRowForward(RowMethod method) {
  constexpr int kWide = WideRowElements(sizeof(ComputeOf<typename Pair::Activation>) == 8, V > 1);
  switch (method) {
    case RowMethod::kWarpRegisters:
      return reinterpret_cast<const void*>(
          &RowForwardRegisters<Pair, kKind, V, kNarrowRowElements, WarpRow>);
    case RowMethod::kWarpWide:
      return reinterpret_cast<const void*>(&RowForwardRegisters<Pair, kKind, V, kWide, WarpRow>);
    case RowMethod::kBlockNarrow:
      return reinterpret_cast<const void*>(
          &RowForwardRegisters<Pair, kKind, V, kNarrowRowElements, BlockRow>);
    case RowMethod::kBlockWide:
      return reinterpret_cast<const void*>(&RowForwardRegisters<Pair, kKind, V, kWide, BlockRow>);
    case RowMethod::kBlockStreaming:
      return reinterpret_cast<const void*>(&RowForwardStreaming<Pair, kKind, V>);
  }
  return nullptr;
}

template <typename Pair>
const void* RowForwardKernel(RowKind kind, RowMethod method, bool wide) {
  constexpr int kWideV = kWideElements<typename Pair::Activation>;
  if (kind == RowKind::kRms) {
    return wide ? SelectRowForward<Pair, RowKind::kRms, kWideV>(method)
                : SelectRowForward<Pair, RowKind::kRms, 1>(method);
  }
  return wide ? SelectRowForward<Pair, RowKind::kLayer, kWideV>(method)
              : SelectRowForward<Pair, RowKind::kLayer, 1>(method);
}

}  // namespace norm_device
