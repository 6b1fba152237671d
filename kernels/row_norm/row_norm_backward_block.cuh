// Row backward for rows owned by one block, or by the blocks of a cluster with a part of the
// columns each. Persistent; rows come through the ring. The warps' sums of a row meet in shared
// memory, in that of every block of the cluster. Pipelined (sm_90): while they do, a warp makes the
// second pass over the row before and the first over the row after, and waits only for warps a row
// behind. Else: one barrier a row, which is kept in registers between its passes.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_backward_exchange.cuh"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_backward_thread_columns.cuh"

namespace norm_device {

/// Rows row_block, row_block + row_blocks, ... below `rows`.
__device__ inline int RowsOfBlock(int64_t rows, int row_block, int64_t row_blocks) {
  return row_block < rows ? static_cast<int>((rows - row_block - 1) / row_blocks) + 1 : 0;
}

/// CarefulRow out of line: its registers are no concern of the loop that calls it.
template <typename X, RowKind kKind, int V, int kElements, bool kCluster>
__device__ __noinline__ void CarefulBlockRow(const RingBackwardParams& p, RowPlace place,
                                             GivenStats stats, double* parts, ColumnMap map,
                                             float* terms) {
  for (int e = 0; e < 2 * kElements; ++e) terms[e] = 0.0F;
  const SharingBlocks<kCluster> group = {parts, p.cluster_blocks};
  CarefulRow<X, kKind, V, kElements>(p, place, stats, group, map,
                                     [&](int e, float dweight, float dbias) {
                                       terms[e] = dweight;
                                       terms[kElements + e] = dbias;
                                     });
}

template <typename X, RowKind kKind, int V, int kGranules, bool kAligned, int kMaxThreads,
          int kMinBlocks, bool kCluster, bool kPipelined, typename Launch>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    RowBackwardBlock(const __grid_constant__ Launch launch) {
  // What rounding left of the mean is no small part of x - mean where x is close to it.
  constexpr bool kExactMean = kKind == RowKind::kLayer && std::is_same_v<X, F32>;
  using Exchange = WarpExchange<kKind, kExactMean, kCluster, kPipelined>;
  using Storage = StorageOf<X>;
  using Columns = ThreadColumns<X, kKind, V, kGranules, kAligned>;
  extern __shared__ __align__(128) char shared[];
  __shared__ StageBarrier full[kMaxRingStages];
  __shared__ StageBarrier arrived[Exchange::kTurns];
  __shared__ float stage_stats[kMaxRingStages][2];  // rstd, mean
  constexpr bool kLayer = kKind == RowKind::kLayer;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarpThreads;
  const int warp = thread / kWarpThreads;
  const int row_block = kCluster ? block / p.cluster_blocks : block;
  const int before = kCluster ? block % p.cluster_blocks * p.columns : 0;
  const int columns = min(p.columns, max(static_cast<int>(p.hidden_size) - before, 0));

  const Ring ring = {shared, full, p};
  auto* column_totals = reinterpret_cast<float*>(shared + p.column_totals_offset);
  Exchange exchange(reinterpret_cast<float*>(shared + p.exchange_offset), arrived,
                    kCluster ? p.cluster_blocks : 1);
  if (thread == 0) {
    ring.Init(threads);
    exchange.Init();
  }
  SharingBlocksBarrier<kCluster>();

  // Row i of this block is row_block + i * row_blocks of the tensors.
  const int rows = RowsOfBlock(p.rows, row_block, p.row_blocks);
  const auto row_of = [&](int i) { return row_block + i * p.row_blocks; };
  const auto chunk_of = [&](int i) {
    return RingChunk{(row_of(i) * p.hidden_size + before) * kSize, columns * kSize};
  };
  const auto fill = [&](int stage, int i) {
    if (i >= rows) return;
    ring.Fill<kAligned>(stage, chunk_of(i), thread, threads, [&](int of_stage) {
      Ring::FillValue(&stage_stats[of_stage][0], p.rstd + row_of(i));
      if (kLayer) Ring::FillValue(&stage_stats[of_stage][1], p.mean + row_of(i));
    });
  };
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) fill(stage, stage);

  Columns own({(warp * kGranules * kWarpThreads + lane) * V, kWarpThreads * V, columns, before});
  own.LoadWeight(p);

  // A second level of sums: this thread's, kWarpThreads apart.
  constexpr int kSums = (kLayer ? 2 : 1) * Columns::kElements;
  float* warp_totals = column_totals + warp * kSums * kWarpThreads;
#pragma unroll 1
  for (int e = 0; e < kSums; ++e) warp_totals[e * kWarpThreads + lane] = 0.0F;
  const auto add_to_totals = [&]() {
    own.ForEachSum([&](int e, float& dweight, float& dbias) {
      float* total = warp_totals + e * kWarpThreads + lane;
      *total += dweight;
      dweight = 0.0F;
      if (kLayer) {
        total[Columns::kElements * kWarpThreads] += dbias;
        dbias = 0.0F;
      }
    });
  };
  int partials_stored = 0;
  // A warp's columns, consecutive ones by consecutive lanes.
  const auto store_partials = [&]() {
    add_to_totals();
    __syncwarp();
    constexpr int kWarpColumns = Columns::kElements * kWarpThreads;
    const int first = warp * kWarpColumns;
    const int64_t at =
        (partials_stored * p.row_blocks + row_block) * p.hidden_size + before + first;
#pragma unroll 1
    for (int column = lane; column < min(columns - first, kWarpColumns); column += kWarpThreads) {
      const int granule = column / V;
      float* total = warp_totals + (granule / kWarpThreads * V + column % V) * kWarpThreads +
                     granule % kWarpThreads;
      if (p.dweight_partials != nullptr) p.dweight_partials[at + column] = *total;
      *total = 0.0F;
      if (kLayer) {
        total += Columns::kElements * kWarpThreads;
        if (p.dbias_partials != nullptr) p.dbias_partials[at + column] = *total;
        *total = 0.0F;
      }
    }
    __syncwarp();
    ++partials_stored;
  };

  const auto stats_of = [&](int stage) {
    GivenStats stats;
    stats.rstd = stage_stats[stage][0];
    if (kLayer) stats.mean = stage_stats[stage][1];
    return stats;
  };
  typename Columns::Held held;
  const auto first_pass = [&](int i, int stage, uint32_t parity) {
    full[stage].Wait(parity);
    const RingChunk chunk = chunk_of(i);
    if (NeedsBarrierWhenFull() || (!kAligned && p.has_edges)) {
      if (ring.HasEdges(chunk)) ring.FillEdges<Storage>(stage, chunk, thread, threads);
      __syncthreads();
    }
    const GivenStats stats = stats_of(stage);
    const char* x = ring.Chunk<kAligned>(stage, 0, chunk.offset);
    const char* dy = ring.Chunk<kAligned>(stage, 1, chunk.offset);
    const bool corrected = kExactMean || (kLayer && MeanNeedsCorrection(stats));
    RowTotals<float> sums;
    SplitSum exact;
    if (!kExactMean && __builtin_expect(corrected, 0)) {
      sums = own.template Sums<kLayer>(x, dy, stats, held);
    } else {
      const float shift = kExactMean ? SplitSum::Shift(stats) : 0.0F;
      const float begin = kExactMean ? SplitSum::Begin(stats, shift) : 0.0F;
      exact.sum = begin;
      sums = own.template Sums<false, kExactMean>(x, dy, stats, held, shift, &exact);
      exact.sum -= begin;
    }
    exchange.Send(sums, exact, corrected, i % Exchange::kTurns);
  };
  const float share = 1.0F / static_cast<float>(p.hidden_size);
  const bool exact_mean = kLayer && HasExactMean<Launch>(p);
  int rows_to_store = p.partial_stages;
  const auto second_pass = [&](int i, int stage) {
    const GivenStats stats = stats_of(stage);
    const bool corrected = kExactMean || (kLayer && MeanNeedsCorrection(stats));
    const RowTotals<float> totals =
        exchange.Receive(stats, p.hidden_size, corrected, i % Exchange::kTurns);
    RowCoefficients<float> coefficients = Coefficients<kKind>(totals, stats, share);
    const int64_t offset = chunk_of(i).offset;
    const RowPlace place = {ring.Chunk<kAligned>(stage, 0, offset),
                            ring.Chunk<kAligned>(stage, 1, offset),
                            p.ring_tensors < 3 ? nullptr : ring.Chunk<kAligned>(stage, 2, offset),
                            static_cast<char*>(p.dx) + offset};
    if (__builtin_expect(!FitsF32<kKind>(totals, stats, coefficients.slope), 0)) {
      float terms[2 * Columns::kElements];
      CarefulBlockRow<X, kKind, V, Columns::kElements, kCluster>(
          p, place, stats, reinterpret_cast<double*>(shared + p.careful_offset), own.map(), terms);
      own.AddTerms(terms);
    } else if (kLayer && __builtin_expect(exact_mean, 0)) {
      const SharingBlocks<kCluster> group = {reinterpret_cast<double*>(shared + p.careful_offset),
                                             p.cluster_blocks};
      coefficients.dweight_correction = DweightCorrection<X, V, Columns::kElements, kAligned>(
          place.x, stats.mean, coefficients.correction, share, group, own.map());
      own.template Gradients<MeanCorrection::kOwn, !kPipelined>(place, coefficients, held);
    } else if (kExactMean || __builtin_expect(corrected, 0)) {
      own.template Gradients<kLayer ? MeanCorrection::kShared : MeanCorrection::kNone, !kPipelined>(
          place, coefficients, held);
    } else {
      own.template Gradients<MeanCorrection::kNone, !kPipelined>(place, coefficients, held);
    }
    if (--rows_to_store == 0) {
      store_partials();
      rows_to_store = p.partial_stages;
    } else if (rows_to_store % kPlainSumRows == 0) {
      add_to_totals();
    }
  };
  if constexpr (kPipelined) {
    int stage = p.stages - 1;  // of row i
    uint32_t parity = 1;
    // Few stages: a barrier frees that of row i - 1 a row earlier.
    const bool few_stages = p.stages < kRelaxedStages;
#pragma unroll 1
    for (int i = -1; i < rows; ++i) {
      const int next_stage = stage + 1 == p.stages ? 0 : stage + 1;
      if (next_stage == 0) parity ^= 1U;
      if (few_stages && i > 0) {
        __syncthreads();
        fill(stage == 0 ? p.stages - 1 : stage - 1, i - 1 + p.stages);
      }
      if (i + 1 < rows) first_pass(i + 1, next_stage, parity);
      if (i >= 0) {
        exchange.Wait(i % Exchange::kTurns, i / Exchange::kTurns & 1);
        // Every warp has sent its sums of row i, so it is done with row i - 2.
        if (!few_stages && i > 1) {
          fill(stage < 2 ? stage + p.stages - 2 : stage - 2, i - 2 + p.stages);
        }
        second_pass(i, stage);
      }
      stage = next_stage;
    }
  } else {
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int i = 0; i < rows; ++i) {
      first_pass(i, stage, parity);
      __syncthreads();  // the sums of row i are there; row i - 1 is done with
      if (i > 0) fill(stage == 0 ? p.stages - 1 : stage - 1, i - 1 + p.stages);
      second_pass(i, stage);
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1U;
      }
    }
  }
  while (partials_stored < p.block_partials) store_partials();
  if (kCluster) SharingBlocksBarrier<kCluster>();
}

}  // namespace norm_device
