// Row backward of long rows: persistent blocks, or clusters that divide a row's columns, take one
// row after another. One warp of a block fetches chunks of the tensors of rows ahead of their use;
// the others add up a row while it arrives, and give the gradient of a row before, whose sums had
// the meantime to travel through the cluster. Every thread has the same columns in every row: the
// sums of dweight and dbias stay in its registers. What few rows need is kept out of the loop over
// rows, which must fit the instruction caches.
#pragma once

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/dependent_launch.cuh"
#include "row_norm/row_norm_backward_long_exchange.cuh"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_long_rows.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

template <typename X, RowKind kKind, int kGranules, int kTileRows, int kMaxThreads, int kTogether,
          bool kApart, bool kPlain, typename Launch>
__global__ void __launch_bounds__(kMaxThreads + kWarpThreads, 1)
    RowBackwardLong(const __grid_constant__ Launch launch) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char dynamic_shared[];
  __shared__ LongShared shared;
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);
  using Rows = LongRows<X, kKind, kGranules, kTileRows, kTogether, kApart, kPlain, Launch>;
  constexpr LongTile kTile = {kGranules, Rows::kRows};
  const LongPlace place(p, block, kTile, kWideElements<X>);
  const uint32_t ring = SharedAddress(dynamic_shared);
  const typename Rows::Exchange exchange(
      reinterpret_cast<float*>(dynamic_shared + p.exchange_offset), shared.arrived, place.rank,
      p.cluster_blocks, place.warps);
  if (static_cast<int>(threadIdx.x) / kWarpThreads == place.warps) {
    // Only this warp uses these before the cluster's barrier.
    if (threadIdx.x % kWarpThreads == 0) shared.Init(p.cluster_blocks, place.warps);
    __syncwarp();
    LongFeeder<X> feeder(p, place, shared, ring, kTile, kKind == RowKind::kLayer);
    feeder.Start();
    __syncwarp();
    ClusterArrive();
    ClusterWait();
    feeder.Run();
  } else {
    if (threadIdx.x < kWarpThreads) exchange.Init();
    __syncwarp();
    ClusterArrive();
    const LongCarefulExchange careful = {
        reinterpret_cast<double*>(dynamic_shared + p.careful_offset), shared.again, place.rank,
        p.cluster_blocks, place.warps};
    float terms[2 * Rows::Columns::kElements];
    Rows rows(p, place, shared, exchange, careful, ring, terms);
    rows.LoadWeight(ring + p.weights_offset);
    // Nobody may write to a peer's shared memory before the peer has started.
    __syncwarp();
    ClusterWait();
    rows.Run();
  }
  // A peer may still send to this block.
  __syncwarp();
  ClusterArrive();
  ClusterWait();
#endif
}

}  // namespace norm_device
