// A cluster of blocks that holds one row in registers, as the owners of primitives/row_owner.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/row_owner.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

/// A cluster of blocks owns a row; partial sums travel through distributed shared memory. All its
/// threads must reach Sum and Max. Compute capability 9.0.
class ClusterOwner : public WarpSpans {
 public:
  static constexpr int kMaxSums = 2;
  static constexpr int kMaxParts = 256;  // warps of a cluster
  struct alignas(16) Scratch {
    double partial[2][kMaxSums][kMaxParts];
  };

  __device__ explicit ClusterOwner(Scratch& scratch)
      : scratch_(&scratch), rank_(ClusterRank()), blocks_(ClusterBlocks()) {
    // Nobody may write to a peer's shared memory before the peer has started.
    ClusterArrive();
  }

  __device__ static int row_in_block() { return 0; }
  __device__ static int rows_per_block() { return 1; }
  __device__ int block_in_grid() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks_per_row() const { return blocks_; }
  __device__ bool IsFirstThread() const { return threadIdx.x == 0 && rank_ == 0; }
  __device__ void ContinueAfter(const ClusterOwner& other) {
    turn_ = other.turn_;
    peers_started_ = other.peers_started_;
  }
  template <int kGranules>
  __device__ int FirstGranule() const {
    return First<kGranules>(rank_ * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x));
  }

  /// Adds up in C within warps, in f64 over warps.
  template <typename C, int K>
  __device__ void Sum(C (&values)[K]) {
    LaneSum<kWarpThreads>(values);
    double wide[K];
#pragma unroll
    for (int k = 0; k < K; ++k) wide[k] = static_cast<double>(values[k]);
    SumOverWarps(wide);
#pragma unroll
    for (int k = 0; k < K; ++k) values[k] = static_cast<C>(wide[k]);
  }

  __device__ uint32_t Max(uint32_t value) {
    const double values[1] = {static_cast<double>(LaneMax<kWarpThreads>(value))};
    Exchange(values);
    uint32_t largest = 0;
    for (int part = threadIdx.x % kWarpThreads; part < Parts(); part += kWarpThreads) {
      largest = max(largest, static_cast<uint32_t>(scratch_->partial[turn_][0][part]));
    }
    turn_ ^= 1;
    return LaneMax<kWarpThreads>(largest);
  }

 private:
  template <int K>
  __device__ void SumOverWarps(double (&values)[K]) {
    static_assert(K <= kMaxSums);
    Exchange(values);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      values[k] = 0.0;
      for (int part = threadIdx.x % kWarpThreads; part < Parts(); part += kWarpThreads) {
        values[k] += scratch_->partial[turn_][k][part];
      }
    }
    LaneSum<kWarpThreads>(values);
    turn_ ^= 1;
  }

  __device__ int Parts() const { return blocks_ * static_cast<int>(blockDim.x / kWarpThreads); }

  /// Publishes one value per warp to every block of the cluster. Its barrier also separates the
  /// reads of the exchange before from the writes of the next.
  template <int K>
  __device__ void Exchange(const double (&values)[K]) {
    if (!peers_started_) {
      ClusterWait();
      peers_started_ = true;
    }
    const int lane = threadIdx.x % kWarpThreads;
    const int part = rank_ * static_cast<int>(blockDim.x / kWarpThreads) +
                     static_cast<int>(threadIdx.x / kWarpThreads);
    if (lane < blocks_) {
#pragma unroll
      for (int k = 0; k < K; ++k) StoreToPeer(&scratch_->partial[turn_][k][part], lane, values[k]);
    }
    __syncwarp();  // the cluster's barrier takes whole warps
    ClusterArrive();
    ClusterWait();
  }

  Scratch* scratch_;
  int rank_;
  int blocks_;
  int turn_ = 0;
  bool peers_started_ = false;
};

}  // namespace norm_device
