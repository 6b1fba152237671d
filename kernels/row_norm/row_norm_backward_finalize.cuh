// dweight and dbias from partial rows: added up in f64, in a fixed order, and rounded once.
#pragma once

#include <cstdint>

#include "primitives/dependent_launch.cuh"
#include "primitives/element_access.cuh"
#include "row_norm/row_norm_backward_column_sums.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// A block owns the columns of blockDim.x threads of one gradient, V each. V is 1, or 4 where a
/// partial row is a multiple of it.
template <typename W, typename Partial, int V, typename Launch>
__global__ void __launch_bounds__(kMaxFinalizeThreads)
    FinalizeSums(const __grid_constant__ Launch launch) {
  const auto [p, block] = FindRequest(launch);
  __shared__ double shared[kMaxFinalizeThreads * V + kMaxFinalizeThreads];
  void* gradient = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (gradient == nullptr) return;
  const auto* partials =
      static_cast<const Partial*>(blockIdx.y == 0 ? p.dweight_partials : p.dbias_partials);
  const int lanes = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.y) * lanes + static_cast<int>(threadIdx.x);
  const ColumnSums<Partial, V> sums(lanes, static_cast<int>(blockDim.y), thread, shared);
  const int64_t first_column = static_cast<int64_t>(block) * lanes * V;
  const auto sync = []() { __syncthreads(); };
  // Once without partial rows while the launch before still runs, which brings the instructions.
#pragma unroll 1
  for (bool waited = false;; waited = true) {
    const double total =
        sums.Total(partials, waited ? p.partials : 0, p.hidden_size, first_column, sync);
    const int64_t column = first_column + sums.column();
    if (waited && sums.has_total() && column < p.hidden_size) {
      static_cast<StorageOf<W>*>(gradient)[column] =
          Element<W>::Narrow(static_cast<ComputeOf<W>>(total));
    }
    if (waited) return;
    AwaitPreviousLaunch();
  }
}

}  // namespace norm_device
