// dweight and dbias from partial rows: added up in f64, in a fixed order, and rounded once.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/element_access.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// A block owns the columns of blockDim.x threads of one gradient, V each; row y of its threads adds
/// up partial rows y, y + blockDim.y, ... V is 1, or 4 where a partial row is a multiple of it.
template <typename W, typename Partial, int V, typename Launch>
__global__ void __launch_bounds__(kFinalizeThreads)
    FinalizeSums(const __grid_constant__ Launch launch) {
  const auto [p, block] = FindRequest(launch);
  // Loads of a thread: all of them, of a partial row a multiprocessor.
  constexpr int kAtOnce = 5;
  struct alignas(sizeof(Partial) * V) Values {
    Partial of[V];
  };
  // Threads' sums by rows, each with a place left over against bank conflicts.
  __shared__ double shared[kFinalizeThreads * V + kFinalizeThreads];
  void* gradient = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (gradient == nullptr) return;
  const auto* partials =
      static_cast<const Partial*>(blockIdx.y == 0 ? p.dweight_partials : p.dbias_partials);
  const int lanes = static_cast<int>(blockDim.x);
  const int rows = static_cast<int>(blockDim.y);
  const int64_t first_column = static_cast<int64_t>(block) * lanes * V;
  const int64_t column = first_column + threadIdx.x * V;
  const int pitch = lanes * V + 1;
  const int thread = static_cast<int>(threadIdx.y) * lanes + threadIdx.x;
  const int shift = __ffs(rows / V) - 1;
  const int part = thread & ((1 << shift) - 1);
  const int own = thread >> shift;
  bool waited = false;
  // Once without partial rows while the launch before still runs, which brings the instructions.
#pragma unroll 1
  for (int64_t partial_rows = 0;; partial_rows = p.partials) {
    double sums[V] = {};
    if (column < p.hidden_size) {
      const Partial* partial = partials + threadIdx.y * p.hidden_size + column;
      const int64_t step = rows * p.hidden_size;
      int64_t i = threadIdx.y;
#pragma unroll 1
      do {
        Values values[kAtOnce] = {};
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (i + k * rows < partial_rows) {
            values[k] = *reinterpret_cast<const Values*>(partial + k * step);
          }
        }
        partial += kAtOnce * step;
#pragma unroll
        for (int v = 0; v < V; ++v) {
          // A few in their own type: conversions are slow.
          Partial few = values[0].of[v];
#pragma unroll
          for (int k = 1; k < kAtOnce; ++k) few += values[k].of[v];
          sums[v] += static_cast<double>(few);
        }
        i += kAtOnce * rows;
      } while (i < partial_rows);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) shared[threadIdx.y * pitch + threadIdx.x * V + v] = sums[v];
    __syncthreads();
    // Consecutive lanes take the sums of one column, V rows each.
    double total = 0.0;
#pragma unroll
    for (int y = 0; y < V; ++y) total += shared[(part * V + y) * pitch + own];
    for (int offset = 1 << shift >> 1; offset > 0; offset /= 2) {
      total += __shfl_xor_sync(0xffffffffU, total, offset);
    }
    if (waited && part == 0 && first_column + own < p.hidden_size) {
      static_cast<StorageOf<W>*>(gradient)[first_column + own] =
          Element<W>::Narrow(static_cast<ComputeOf<W>>(total));
    }
    if (waited) return;
    AwaitPreviousLaunch();
    waited = true;
    __syncthreads();
  }
}

}  // namespace norm_device
