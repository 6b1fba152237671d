// dweight and dbias of row norms, and statistics for rows that come without.
// Column kernel, for rows too long for the ring kernels: x and dy read once more; a block owns 32
// granules of columns of a strip of rows, 8 rows side by side, each thread adding its columns up in
// compensated registers.
#include <cstdint>

#include "primitives/compensated_sum.cuh"
#include "primitives/element_access.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_finalize.cuh"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {
namespace {

template <typename X, RowKind kKind, int V>
__global__ void __launch_bounds__(kColumnThreadsX* kColumnThreadsY)
    ColumnSumsKernel(const ColumnParams p) {
  using C = ComputeOf<X>;
  __shared__ double shared[2][kColumnThreadsY][kColumnThreadsX];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kColumnThreadsX + threadIdx.x) * V;
  const bool inside = column < p.hidden_size;
  const int64_t first_row = blockIdx.y * p.rows_per_strip;
  const int64_t end_row = min(p.rows, first_row + p.rows_per_strip);
  CompensatedSum<C> dweight[V];
  CompensatedSum<C> dbias[V];
  if (inside) {
    for (int64_t row = first_row + threadIdx.y; row < end_row; row += kColumnThreadsY) {
      const int64_t offset = row * p.hidden_size + column;
      const auto x = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
      const auto dy = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.dy) + offset, p.aligned);
      const C rstd = static_cast<const C*>(p.statistics.rstd)[row];
      C mean = 0;
      C mean_correction = 0;
      if (kKind == RowKind::kLayer) {
        mean = static_cast<const C*>(p.statistics.mean)[row];
        mean_correction = static_cast<const C*>(p.statistics.mean_correction)[row];
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const C centred =
            kKind == RowKind::kLayer ? (x.Wide(i) - mean) - mean_correction : x.Wide(i);
        dweight[i].Add(dy.Wide(i) * (centred * rstd));
        if (kKind == RowKind::kLayer) dbias[i].Add(dy.Wide(i));
      }
    }
  }
  for (int i = 0; i < V; ++i) {
    shared[0][threadIdx.y][threadIdx.x] = dweight[i].Total();
    shared[1][threadIdx.y][threadIdx.x] = dbias[i].Total();
    __syncthreads();
    if (threadIdx.y < 2 && inside) {
      double sum = 0.0;
      for (int y = 0; y < kColumnThreadsY; ++y) sum += shared[threadIdx.y][y][threadIdx.x];
      double* partials = threadIdx.y == 0 ? p.dweight_partials : p.dbias_partials;
      if (partials != nullptr) partials[blockIdx.y * p.hidden_size + column + i] = sum;
    }
    __syncthreads();
  }
}

/// The mean as the caller would have given it: rounded to f32.
template <typename X, RowKind kKind, int V>
__global__ void __launch_bounds__(kStatisticsMaxThreads)
    StatisticsKernel(const RowStatisticsParams p) {
  __shared__ BlockRow::Scratch scratch;
  BlockRow owner;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto* x = static_cast<const StorageOf<X>*>(p.x) + row * p.hidden_size;
    const RowStats<float> stats = StreamedRowStats<kKind, X, V>(
        [&](int64_t column) { return LoadGranule<X, V>(x + column, p.aligned); }, x, owner, scratch,
        p.hidden_size, p.aligned, p.eps);
    if (threadIdx.x == 0) {
      p.rstd[row] = stats.rstd;
      if (kKind == RowKind::kLayer) p.mean[row] = stats.mean;
    }
  }
}

}  // namespace

template <typename X>
const void* ColumnKernel(RowKind kind, bool wide) {
  constexpr int kWideV = kWideElements<X>;
  if (kind == RowKind::kRms) {
    return wide ? reinterpret_cast<const void*>(&ColumnSumsKernel<X, RowKind::kRms, kWideV>)
                : reinterpret_cast<const void*>(&ColumnSumsKernel<X, RowKind::kRms, 1>);
  }
  return wide ? reinterpret_cast<const void*>(&ColumnSumsKernel<X, RowKind::kLayer, kWideV>)
              : reinterpret_cast<const void*>(&ColumnSumsKernel<X, RowKind::kLayer, 1>);
}

template <typename W, typename Launch>
const void* SelectFinalize(bool partials_are_f64, int columns) {
  if (partials_are_f64) return reinterpret_cast<const void*>(&FinalizeSums<W, double, 1, Launch>);
  return columns == 1 ? reinterpret_cast<const void*>(&FinalizeSums<W, float, 1, Launch>)
                      : reinterpret_cast<const void*>(&FinalizeSums<W, float, 4, Launch>);
}

template <typename W>
const void* FinalizeKernel(BackwardLaunchKind launch, bool partials_are_f64, int columns) {
  return launch == BackwardLaunchKind::kSegments
             ? SelectFinalize<W, FinalizeSegments>(partials_are_f64, columns)
             : SelectFinalize<W, FinalizeParams>(partials_are_f64, columns);
}

template <typename X>
const void* RowStatisticsKernel(RowKind kind, bool wide) {
  constexpr int kWideV = kWideElements<X>;
  if (kind == RowKind::kRms) {
    return wide ? reinterpret_cast<const void*>(&StatisticsKernel<X, RowKind::kRms, kWideV>)
                : reinterpret_cast<const void*>(&StatisticsKernel<X, RowKind::kRms, 1>);
  }
  return wide ? reinterpret_cast<const void*>(&StatisticsKernel<X, RowKind::kLayer, kWideV>)
              : reinterpret_cast<const void*>(&StatisticsKernel<X, RowKind::kLayer, 1>);
}

template const void* ColumnKernel<F32>(RowKind, bool);
template const void* ColumnKernel<F16>(RowKind, bool);
template const void* ColumnKernel<BF16>(RowKind, bool);
template const void* ColumnKernel<F64>(RowKind, bool);
template const void* RowStatisticsKernel<F32>(RowKind, bool);
template const void* RowStatisticsKernel<F16>(RowKind, bool);
template const void* RowStatisticsKernel<BF16>(RowKind, bool);
template const void* FinalizeKernel<F32>(BackwardLaunchKind, bool, int);
template const void* FinalizeKernel<F16>(BackwardLaunchKind, bool, int);
template const void* FinalizeKernel<BF16>(BackwardLaunchKind, bool, int);
template const void* FinalizeKernel<F64>(BackwardLaunchKind, bool, int);

}  // namespace norm_device
