// Row backward for rows owned by one block, or by the blocks of a cluster with a part of the columns each.
// Persistent; rows come through the ring. One barrier a row: while the warps' sums of a row meet (in
// shared memory, or in that of every block of the cluster), the first pass over the next row runs.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// Sums over the warps of the blocks that share a row. Two turns: the sums of a row are read while those of
/// the next are written.
template <RowKind kKind, bool kCluster>
class WarpExchange {
 public:
  static constexpr int kSums = kKind == RowKind::kLayer ? 2 : 1;
  static constexpr int kSlots = kKind == RowKind::kLayer ? 3 : 1;  // gd, g, d

  /// Floats between the slots: each sum is read by half a warp, from other banks than its neighbour.
  static __host__ __device__ constexpr int Stride(int warps) {
    return (warps + kWarpThreads - 1) / kWarpThreads * kWarpThreads + kWarpThreads / 2;
  }
  static __host__ __device__ constexpr int Floats(int warps) { return 2 * kSlots * Stride(warps); }

  __device__ WarpExchange(float* parts, StageBarrier* arrived, int cluster_blocks)
      : parts_(parts),
        arrived_(arrived),
        cluster_blocks_(cluster_blocks),
        all_warps_(static_cast<int>(blockDim.x) / kWarpThreads * cluster_blocks) {}

  /// Called by all threads, before a barrier of all blocks that share rows.
  __device__ void Init() const {
    for (int i = threadIdx.x; i < Floats(all_warps_); i += blockDim.x) parts_[i] = 0.0F;
    if (kCluster && threadIdx.x == 0) {
      arrived_[0].Init(1);
      arrived_[1].Init(1);
      StageBarrier::FenceInit();
    }
  }

  /// Hands this thread's sums over. `d` counts when `corrected`, which all threads agree on.
  __device__ void Send(RowTotals<float> sums, bool corrected, int turn) {
    const int lane = threadIdx.x % kWarpThreads;
    float sum;
    if (kKind == RowKind::kLayer) {
      // Half the lanes go on with gd, half with g.
      const bool low = lane < kWarpThreads / 2;
      const float other = __shfl_xor_sync(kAllLanes, low ? sums.g : sums.gd, kWarpThreads / 2);
      sum = (low ? sums.gd : sums.g) + other;
#pragma unroll
      for (int offset = kWarpThreads / 4; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
    } else {
      sum = FullSum(sums.gd);
    }
    const int slot = kKind == RowKind::kLayer ? lane / (kWarpThreads / 2) : 0;
    Deliver(sum, slot, lane % (kWarpThreads / kSums), turn);
    if (corrected) Deliver(FullSum(sums.d), kSlots - 1, lane, turn);
    if (kCluster && threadIdx.x == 0) {
#if __CUDA_ARCH__ >= 900
      arrived_[turn].ArriveExpecting(all_warps_ * (kSums + (corrected ? 1 : 0)) *
                                     static_cast<int>(sizeof(float)));
#endif
    }
  }

  /// The totals, after a barrier of the block that follows Send.
  __device__ RowTotals<float> Receive(bool corrected, int turn) {
    if (kCluster) {
      arrived_[turn].Wait(parity_);
      parity_ ^= turn;
    }
    const int lane = threadIdx.x % kWarpThreads;
    constexpr int kLanes = kWarpThreads / kSums;
    const float* part = Part(lane / kLanes, turn);
    float sum = part[lane % kLanes];
    if (kCluster) {
#pragma unroll 1
      for (int i = lane % kLanes + kLanes; i < all_warps_; i += kLanes) sum += part[i];
    } else if (kLanes < kWarpThreads) {
      sum += part[lane % kLanes + kLanes];
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, offset);
    RowTotals<float> totals;
    totals.gd = kSums == 1 ? sum : __shfl_sync(kAllLanes, sum, 0);
    if (kSums > 1) totals.g = __shfl_sync(kAllLanes, sum, kLanes);
    if (corrected) {
      part = Part(kSlots - 1, turn);
      float d = part[lane];
      if (kCluster) {
#pragma unroll 1
        for (int i = lane + kWarpThreads; i < all_warps_; i += kWarpThreads) d += part[i];
      }
      totals.d = FullSum(d);
    }
    return totals;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  __device__ static float FullSum(float value) {
#pragma unroll
    for (int offset = kWarpThreads / 2; offset > 0; offset /= 2)
      value += __shfl_xor_sync(kAllLanes, value, offset);
    return value;
  }
  __device__ float* Part(int slot, int turn) const {
    return parts_ + (turn * kSlots + slot) * Stride(all_warps_);
  }
  /// To the block of rank `peer`, if there is one.
  __device__ void Deliver(float sum, int slot, int peer, int turn) const {
    if (peer >= (kCluster ? cluster_blocks_ : 1)) return;
    int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    if (!kCluster) {
      Part(slot, turn)[warp] = sum;
      return;
    }
#if __CUDA_ARCH__ >= 900
    const int rank = static_cast<int>(blockIdx.x) % cluster_blocks_;
    warp += rank * (static_cast<int>(blockDim.x) / kWarpThreads);
    uint32_t place;
    uint32_t barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(place)
                 : "r"(SharedAddress(Part(slot, turn) + warp)), "r"(peer));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(barrier)
                 : "r"(SharedAddress(arrived_[turn].state())), "r"(peer));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
            place),
        "r"(__float_as_uint(sum)), "r"(barrier)
        : "memory");
#endif
  }

  float* parts_;
  StageBarrier* arrived_;
  int cluster_blocks_;
  int all_warps_;
  uint32_t parity_ = 0;
};

/// Rows row_block, row_block + row_blocks, ... below `rows`.
__device__ inline int RowsOfBlock(int64_t rows, int row_block, int64_t row_blocks) {
  return row_block < rows ? static_cast<int>((rows - row_block - 1) / row_blocks) + 1 : 0;
}

template <bool kCluster>
__device__ void SharingBlocksBarrier() {
#if __CUDA_ARCH__ >= 900
  if (kCluster) {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

/// The threads that share a row, for CarefulRow.
template <bool kCluster>
struct SharingBlocks {
  int cluster_blocks;

  __device__ void Sum(double (&sums)[3]) const {
    __shared__ double parts[3][kWarpThreads];
    LaneSum<kWarpThreads>(sums);
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
    for (int k = 0; k < 3; ++k) {
      if (threadIdx.x % kWarpThreads == 0) parts[k][warp] = sums[k];
      sums[k] = 0.0;
    }
    SharingBlocksBarrier<kCluster>();
#pragma unroll 1
    for (int rank = 0; rank < cluster_blocks; ++rank) {
#pragma unroll 1
      for (int i = 0; i < warps; ++i) {
        for (int k = 0; k < 3; ++k) sums[k] += Part(&parts[k][i], rank);
      }
    }
    SharingBlocksBarrier<kCluster>();
  }

 private:
  __device__ double Part(const double* part, int rank) const {
#if __CUDA_ARCH__ >= 900
    if (kCluster) {
      uint32_t place;
      double value;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                   : "=r"(place)
                   : "r"(SharedAddress(part)), "r"(rank));
      asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(value) : "r"(place) : "memory");
      return value;
    }
#endif
    return *part;
  }
};

/// CarefulRow out of line: its registers are no concern of the loop that calls it.
template <typename X, RowKind kKind, int V, int kElements, bool kCluster>
__device__ __noinline__ void CarefulBlockRow(const RingBackwardParams& p, RowPlace place,
                                             GivenStats stats, ColumnMap map, float* terms) {
  for (int e = 0; e < 2 * kElements; ++e) terms[e] = 0.0F;
  CarefulRow<X, kKind, V, kElements>(p, place, stats, SharingBlocks<kCluster>{p.cluster_blocks},
                                     map, [&](int e, float dweight, float dbias) {
                                       terms[e] = dweight;
                                       terms[kElements + e] = dbias;
                                     });
}

template <typename X, RowKind kKind, int V, int kGranules, bool kAligned, int kMaxThreads,
          int kMinBlocks, bool kCluster>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    RowBackwardBlock(const __grid_constant__ RingBackwardParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ StageBarrier full[kMaxRingStages];
  __shared__ StageBarrier arrived[2];
  using Storage = StorageOf<X>;
  using Columns = ThreadColumns<X, kKind, V, kGranules, kAligned>;
  constexpr bool kLayer = kKind == RowKind::kLayer;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  AllowDependentLaunch();

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int row_block = static_cast<int>(kCluster ? blockIdx.x / p.cluster_blocks : blockIdx.x);
  const int before = kCluster ? static_cast<int>(blockIdx.x % p.cluster_blocks) * p.columns : 0;
  const int columns = min(p.columns, max(static_cast<int>(p.hidden_size) - before, 0));

  const Ring ring = {shared, full, p};
  auto* column_totals =
      reinterpret_cast<float*>(shared + p.stages * p.ring_tensors * p.tensor_bytes);
  const int column_total_floats =
      p.has_column_totals ? threads * Columns::kElements * (kLayer ? 2 : 1) : 0;
  WarpExchange<kKind, kCluster> exchange(column_totals + column_total_floats, arrived,
                                         kCluster ? p.cluster_blocks : 1);
  if (thread == 0) ring.Init(p.stages, threads);
  exchange.Init();
  SharingBlocksBarrier<kCluster>();

  // Row i of this block is row_block + i * row_blocks of the tensors.
  const int rows = RowsOfBlock(p.rows, row_block, p.row_blocks);
  const int64_t first_offset = (row_block * p.hidden_size + before) * kSize;
  const int64_t row_bytes = p.row_blocks * p.hidden_size * kSize;
  const auto fill = [&](int stage, int i) {
    if (i < rows)
      ring.Fill(stage, {first_offset + i * row_bytes, columns * kSize}, thread, threads);
  };
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) fill(stage, stage);

  const int warp = thread / kWarpThreads;
  Columns own({(warp * kGranules * kWarpThreads + thread % kWarpThreads) * V, kWarpThreads * V,
               columns, before});
  own.LoadWeight(p);
#pragma unroll 1
  for (int i = thread; i < column_total_floats; i += threads) column_totals[i] = 0.0F;

  const float* rstds = p.rstd + row_block;
  const float* means = p.mean + row_block;
  const auto stats_of = [&](int i) {
    GivenStats stats;
    if (i < rows) {
      const int64_t at = i * p.row_blocks;
      stats.rstd = rstds[at];
      if (kLayer) stats.mean = means[at];
    }
    return stats;
  };
  // This thread's second level, kWarpThreads apart.
  float* own_totals = column_totals + warp * (kLayer ? 2 : 1) * Columns::kElements * kWarpThreads +
                      thread % kWarpThreads;
  // Moves the plain sums to the second level, or that to the plain sums.
  const auto take_totals = [&](bool add) {
    own.ForEachSum([&](int e, float& dweight, float& dbias) {
      float* total = own_totals + e * kWarpThreads;
      dweight += *total;
      *total = add ? dweight : 0.0F;
      if (add) dweight = 0.0F;
      if (kLayer) {
        total += Columns::kElements * kWarpThreads;
        dbias += *total;
        *total = add ? dbias : 0.0F;
        if (add) dbias = 0.0F;
      }
    });
  };
  int chunk = 0;
  const auto store_partials = [&]() {
    if (p.has_column_totals) take_totals(false);
    const int64_t at = (chunk * p.row_blocks + row_block) * p.hidden_size + before;
    own.ForEachSum([&](int e, float& dweight, float& dbias) {
      const int column = own.Column(e);
      if (own.Holds(column)) {
        if (p.dweight_partials != nullptr) p.dweight_partials[at + column] = dweight;
        if (kLayer && p.dbias_partials != nullptr) p.dbias_partials[at + column] = dbias;
      }
      dweight = 0.0F;
      if (kLayer) dbias = 0.0F;
    });
    ++chunk;
  };

  const float share = 1.0F / static_cast<float>(p.hidden_size);
  GivenStats stats;
  GivenStats next_stats = stats_of(0);
  int64_t offset = first_offset - row_bytes;
  int stage = p.stages - 1;
  uint32_t parity = 1;
  int turn = 1;
  int rows_to_flush = kPlainSumRows;
  int rows_to_store = p.chunk_rows;
  // Second pass of row i, first pass of the row after it.
  for (int i = -1; i < rows; ++i) {
    const GivenStats later_stats = stats_of(i + 2);
    if (i >= 0) {
      __syncthreads();  // the sums of row i are there; row i - 1 is done with
      if (i > 0) fill(stage == 0 ? p.stages - 1 : stage - 1, i - 1 + p.stages);
    }
    const int next_stage = stage + 1 == p.stages ? 0 : stage + 1;
    if (next_stage == 0) parity ^= 1U;
    const int64_t next_offset = offset + row_bytes;
    if (i + 1 < rows) {
      full[next_stage].Wait(parity);
      if (NeedsBarrierWhenFull() || (!kAligned && p.has_edges)) {
        if (ring.HasEdges({next_offset, columns * kSize})) {
          ring.FillEdges<Storage>(next_stage, {next_offset, columns * kSize}, thread, threads);
        }
        __syncthreads();
      }
      const char* x = ring.Chunk<kAligned>(next_stage, 0, next_offset);
      const char* dy = ring.Chunk<kAligned>(next_stage, 1, next_offset);
      const bool corrected = kLayer && MeanNeedsCorrection(next_stats);
      exchange.Send(corrected ? own.template Sums<kLayer>(x, dy, next_stats)
                              : own.template Sums<false>(x, dy, next_stats),
                    corrected, turn ^ 1);
    }
    if (i >= 0) {
      const bool corrected = kLayer && MeanNeedsCorrection(stats);
      const RowTotals<float> totals = exchange.Receive(corrected, turn);
      const RowCoefficients<float> coefficients = Coefficients<kKind>(totals, stats, share);
      const RowPlace place = {ring.Chunk<kAligned>(stage, 0, offset),
                              ring.Chunk<kAligned>(stage, 1, offset),
                              p.ring_tensors < 3 ? nullptr : ring.Chunk<kAligned>(stage, 2, offset),
                              static_cast<char*>(p.dx) + offset};
      if (!FitsF32<kKind>(totals, stats, coefficients.slope)) {
        float terms[2 * Columns::kElements];
        CarefulBlockRow<X, kKind, V, Columns::kElements, kCluster>(p, place, stats, own.map(),
                                                                   terms);
        own.AddTerms(terms);
      } else if (corrected) {
        own.template Gradients<kLayer>(place, coefficients);
      } else {
        own.template Gradients<false>(place, coefficients);
      }
      if (--rows_to_store == 0) {
        store_partials();
        rows_to_store = p.chunk_rows;
        rows_to_flush = kPlainSumRows;
      } else if (--rows_to_flush == 0) {
        if (p.has_column_totals) take_totals(true);
        rows_to_flush = kPlainSumRows;
      }
    }
    stats = next_stats;
    next_stats = later_stats;
    stage = next_stage;
    offset = next_offset;
    turn ^= 1;
  }
  while (chunk < p.chunks) store_partials();
  if (kCluster) SharingBlocksBarrier<kCluster>();
}

}  // namespace norm_device
