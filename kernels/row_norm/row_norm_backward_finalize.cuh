// dweight and dbias from partial rows: added up in f64, in a fixed order, and rounded once.
#pragma once

#include <cstdint>

#include "primitives/element_access.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "primitives/dependent_launch.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// A block owns kFinalizeThreadsX columns of one gradient; row y of its threads adds up partial
/// rows y, y + kFinalizeThreadsY, ...
template <typename W, typename Partial, typename Launch>
__global__ void __launch_bounds__(kFinalizeThreadsX* kFinalizeThreadsY)
    FinalizeSums(const __grid_constant__ Launch launch) {
  const auto [p, block] = FindRequest(launch);
  static_assert(kFinalizeThreadsX * kFinalizeThreadsY % kWarpThreads == 0);
  __shared__ double shared[kFinalizeThreadsX][kFinalizeThreadsY + 1];
  void* gradient = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (gradient == nullptr) return;
  const auto* partials =
      static_cast<const Partial*>(blockIdx.y == 0 ? p.dweight_partials : p.dbias_partials);
  const int64_t first_column = static_cast<int64_t>(block) * kFinalizeThreadsX;
  const int64_t column = first_column + threadIdx.x;
  AwaitPreviousLaunch();
  double sum = 0.0;
  if (column < p.hidden_size) {
    const Partial* partial = partials + threadIdx.y * p.hidden_size + column;
    const int64_t step = kFinalizeThreadsY * p.hidden_size;
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < p.partials; i += kFinalizeThreadsY) {
      sum += static_cast<double>(*partial);
      partial += step;
    }
  }
  shared[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  // Consecutive lanes take the sums of one column.
  const int thread = static_cast<int>(threadIdx.y) * kFinalizeThreadsX + threadIdx.x;
  const int y = thread % kFinalizeThreadsY;
  const int x = thread / kFinalizeThreadsY;
  double total[1] = {shared[x][y]};
  LaneSum<kFinalizeThreadsY>(total);
  if (y == 0 && first_column + x < p.hidden_size) {
    static_cast<StorageOf<W>*>(gradient)[first_column + x] =
        Element<W>::Narrow(static_cast<ComputeOf<W>>(total[0]));
  }
}

}  // namespace norm_device
