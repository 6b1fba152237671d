// Row backward for short rows: `lanes` lanes of a warp own a row, a warp takes tiles of consecutive
// rows through a ring of its own, two rows of a lane group at a time. No barrier of the block until
// the sums of its warps meet in one partial row.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_column_sums.cuh"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_backward_thread_columns.cuh"

namespace norm_device {

/// Aligned groups of lanes that share a row.
template <int kLanes>
struct LaneGroup {
  static_assert(kLanes >= 4);

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int row() { return static_cast<int>(threadIdx.x) % kWarpThreads / kLanes; }

  template <int kFrom = kLanes / 2, typename A>
  __device__ static A Sum(A value) {
#pragma unroll
    for (int offset = kFrom; offset > 0; offset /= 2)
      value += __shfl_xor_sync(kAllLanes, value, offset);
    return value;
  }
  template <int kSums>
  __device__ void Sum(double (&sums)[kSums]) const {
#pragma unroll
    for (double& sum : sums) sum = Sum(sum);
  }

  /// Totals of gd and g of two rows, half the lanes going on with each. The tree of a row is the
  /// same in either place.
  template <RowKind kKind>
  __device__ static void SumTwoRows(RowTotals<float> (&rows)[2]) {
    constexpr int kHalf = kLanes / 2;
    constexpr int kQuarter = kLanes / 4;
    const bool second = (threadIdx.x & kHalf) != 0;
    float gd = Exchange<kHalf>(rows[0].gd, rows[1].gd, second);
    if (kKind == RowKind::kLayer) {
      const float g = Exchange<kHalf>(rows[0].g, rows[1].g, second);
      gd = Sum<kQuarter / 2>(Exchange<kQuarter>(gd, g, (threadIdx.x & kQuarter) != 0));
    } else {
      gd = Sum<kQuarter>(gd);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      rows[k].gd = __shfl_sync(kAllLanes, gd, k * kHalf, kLanes);
      if (kKind == RowKind::kLayer) {
        rows[k].g = __shfl_sync(kAllLanes, gd, k * kHalf + kQuarter, kLanes);
      }
    }
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  /// a + the partner's a, or b + the partner's b.
  template <int kOffset>
  __device__ static float Exchange(float a, float b, bool takes_b) {
    const float other = __shfl_xor_sync(kAllLanes, takes_b ? a : b, kOffset);
    return (takes_b ? b : a) + other;
  }
};

/// A tile in the ring.
struct TilePlace {
  RowPlace first_row;
  GivenStats stats;  // lane i: of row i
  int rows;
};

/// The rows of a tile whose bit is set, by the lanes that own them, in f64; the parameters' terms
/// go to `totals`. Reached by all lanes.
template <typename X, RowKind kKind, int V, int kGranules, int kLanes>
__device__ __noinline__ void CarefulTileRows(const RingBackwardParams& p, TilePlace tile,
                                             unsigned rows, ColumnMap map, float* totals) {
  constexpr LaneGroup<kLanes> group;
  constexpr int kElements = V * kGranules;
  constexpr int kStride = kTileTotalsStride<V>;
  const int row_bytes = map.end * static_cast<int>(sizeof(StorageOf<X>));
#pragma unroll 1
  for (int first = 0; first < tile.rows; first += kWarpThreads / kLanes) {
    const int row = first + group.row();
    GivenStats stats;
    stats.rstd = __shfl_sync(0xffffffffU, tile.stats.rstd, row);
    stats.mean = __shfl_sync(0xffffffffU, tile.stats.mean, row);
    RowPlace place = tile.first_row;
    place.x += row * row_bytes;
    place.dy += row * row_bytes;
    if (place.dresidual != nullptr) place.dresidual += row * row_bytes;
    place.dx += row * row_bytes;
    ColumnMap own = map;
    if (row >= tile.rows || (rows >> row & 1U) == 0) own.end = 0;
    CarefulRow<X, kKind, V, kElements>(p, place, stats, group, own,
                                       [&](int e, float dweight, float dbias) {
                                         totals[e * kStride] += dweight;
                                         if (kKind == RowKind::kLayer)
                                           totals[(kElements + e) * kStride] += dbias;
                                       });
  }
}

template <typename X, RowKind kKind, int V, int kGranules, int kLanes, bool kAligned,
          int kMaxThreads, typename Launch>
__global__ void __launch_bounds__(kMaxThreads, 1)
    RowBackwardTiles(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kMaxWarps = kMaxThreads / kWarpThreads;
  __shared__ StageBarrier full[kMaxWarps][kMaxRingStages];
  using Storage = StorageOf<X>;
  using Columns = ThreadColumns<X, kKind, V, kGranules, kAligned>;
  constexpr bool kLayer = kKind == RowKind::kLayer;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  constexpr int kTogether = 2;
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);

  const int threads = static_cast<int>(blockDim.x);
  const int warps = threads / kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  constexpr LaneGroup<kLanes> group;
  constexpr int kRowsAtOnce = kWarpThreads / kLanes;
  const int hidden_size = static_cast<int>(p.hidden_size);
  const int row_bytes = hidden_size * kSize;
  const int ring_bytes = p.stages * p.ring_tensors * p.tensor_bytes;
  const Ring ring = {shared + warp * ring_bytes, full[warp], p};
  auto* column_totals = reinterpret_cast<float*>(shared + p.column_totals_offset);
  constexpr int kGradients = kLayer ? 2 : 1;
  if (lane == 0) ring.InitForOne(kWarpThreads);
  __syncwarp();

  // Tile i of this warp is first_tile + i * warps of the grid.
  const int64_t first_tile = static_cast<int64_t>(warp) * p.row_blocks + block;
  const int64_t tile_step = static_cast<int64_t>(p.row_blocks) * warps;
  const int64_t tiles = (p.rows + p.tile_rows - 1) / p.tile_rows;
  const auto chunk_of = [&](int64_t tile) {
    const int64_t first_row = tile * p.tile_rows;
    const auto rows = static_cast<int>(min(static_cast<int64_t>(p.tile_rows), p.rows - first_row));
    return RingChunk{first_row * row_bytes, rows * row_bytes};
  };
  const auto fill = [&](int stage, int64_t tile) {
    if (tile >= tiles) return;
    ring.FillByOne<kAligned>(stage, chunk_of(tile), lane == 0, lane, kWarpThreads, [](int) {});
  };
  const float share = 1.0F / static_cast<float>(hidden_size);
  const bool exact_mean = kLayer && HasExactMean<Launch>(p);
  // Lane i holds the statistics of row i of the tile.
  const auto stats_of = [&](int64_t tile) {
    GivenStats stats;
    const int64_t row = tile * p.tile_rows + lane;
    if (lane < p.tile_rows && row < p.rows) {
      stats.rstd = p.rstd[row];
      if (kLayer) stats.mean = p.mean[row];
    }
    return stats;
  };
  GivenStats next_stats = stats_of(first_tile);
  Columns own({group.lane() * V, kLanes * V, hidden_size, 0});
  typename Columns::Loads weight;
  own.BeginWeight(p, weight);
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) fill(stage, first_tile + stage * tile_step);
  own.FinishWeight(p, weight);
  // This thread's sums, kStride apart.
  constexpr int kStride = kTileTotalsStride<V>;
  float* own_totals = column_totals + warp * kGradients * Columns::kElements * kStride + lane;
  bool first_sums = true;
  const auto add_to_totals = [&]() {
    own.ForEachSum([&](int e, float& dweight, float& dbias) {
      float* total = own_totals + e * kStride;
      *total = first_sums ? dweight : *total + dweight;
      dweight = 0.0F;
      if (kLayer) {
        total += Columns::kElements * kStride;
        *total = first_sums ? dbias : *total + dbias;
        dbias = 0.0F;
      }
    });
    first_sums = false;
  };
  // The block's partial row: its lane groups' sums in order.
  const auto store_partials = [&](int partial) {
    add_to_totals();
    first_sums = true;
    __syncthreads();
    const int64_t at = (static_cast<int64_t>(partial) * p.row_blocks + block) * hidden_size;
    for (int i = static_cast<int>(threadIdx.x); i < kGradients * hidden_size; i += threads) {
      const int gradient = i < hidden_size ? 0 : 1;
      const int column = i - gradient * hidden_size;
      float* partials = gradient == 0 ? p.dweight_partials : p.dbias_partials;
      if (partials == nullptr) continue;
      const int granule = column / V;
      const int element = gradient * Columns::kElements + granule / kLanes * V + column % V;
      const float* total = column_totals + element * kStride + granule % kLanes;
      float sums[kRowsAtOnce] = {};
#pragma unroll 4
      for (int of_warp = 0; of_warp < warps; ++of_warp) {
#pragma unroll
        for (int row = 0; row < kRowsAtOnce; ++row) sums[row] += total[row * kLanes];
        total += kGradients * Columns::kElements * kStride;
      }
#pragma unroll
      for (int row = 1; row < kRowsAtOnce; ++row) sums[0] += sums[row];
      partials[at + column] = sums[0];
    }
  };

  int stage = 0;
  uint32_t parity = 0;
  int steps_to_flush = kPlainSumRows / kTogether;
  int64_t tile = first_tile;
#pragma unroll 1
  for (int partial = 0; partial < p.block_partials; ++partial) {
#pragma unroll 1
    for (int i = 0; i < p.partial_stages && tile < tiles; ++i) {
      const GivenStats tile_stats = next_stats;
      next_stats = stats_of(tile + tile_step);
      const RingChunk chunk_in_tensors = chunk_of(tile);
      ring.full[stage].Wait(parity);
      if (NeedsBarrierWhenFull() || (!kAligned && p.has_edges)) {
        if (ring.HasEdges(chunk_in_tensors)) {
          ring.FillEdges<Storage>(stage, chunk_in_tensors, lane, kWarpThreads);
        }
        __syncwarp();
      }
      const int64_t offset = chunk_in_tensors.offset;
      const RowPlace first_row = {
          ring.Chunk<kAligned>(stage, 0, offset), ring.Chunk<kAligned>(stage, 1, offset),
          p.ring_tensors < 3 ? nullptr : ring.Chunk<kAligned>(stage, 2, offset),
          static_cast<char*>(p.dx) + offset};
      const int tile_rows = chunk_in_tensors.bytes / row_bytes;
      unsigned careful_rows = 0;
#pragma unroll 1
      for (int first = 0; first < tile_rows; first += kTogether * kRowsAtOnce) {
        GivenStats stats[kTogether];
        int row[kTogether];
        bool corrected = false;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          row[k] = first + k * kRowsAtOnce + group.row();
          stats[k].rstd = __shfl_sync(0xffffffffU, tile_stats.rstd, row[k]);
          if (kLayer) {
            stats[k].mean = __shfl_sync(0xffffffffU, tile_stats.mean, row[k]);
            corrected = corrected || MeanNeedsCorrection(stats[k]);
          }
        }
        if (kLayer) corrected = __any_sync(0xffffffffU, corrected);
        RowTotals<float> totals[kTogether];
        typename Columns::Held held;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const char* x = first_row.x + row[k] * row_bytes;
          const char* dy = first_row.dy + row[k] * row_bytes;
          if (row[k] < tile_rows) {
            if (__builtin_expect(corrected, 0)) {
              totals[k] = own.template Sums<kLayer>(x, dy, stats[k], held);
            } else {
              totals[k] = own.template Sums<false>(x, dy, stats[k], held);
            }
          }
        }
        group.template SumTwoRows<kKind>(totals);
        // The second pass reads the rows again instead of keeping them in registers.
        asm volatile("" ::: "memory");
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (__builtin_expect(corrected, 0)) {
            totals[k].d = group.Sum(totals[k].d);
            // Whether this row is corrected is its own affair.
            if (!MeanNeedsCorrection(stats[k])) totals[k].d = 0.0F;
          }
          RowCoefficients<float> coefficients = Coefficients<kKind>(totals[k], stats[k], share);
          if (kLayer && __builtin_expect(exact_mean, 0)) {
            ColumnMap map = own.map();
            if (row[k] >= tile_rows) map.end = 0;
            coefficients.dweight_correction = DweightCorrection<X, V, Columns::kElements, kAligned>(
                first_row.x + row[k] * row_bytes, stats[k].mean, coefficients.correction, share,
                group, map);
          }
          if (row[k] >= tile_rows) continue;
          if (__builtin_expect(!FitsF32<kKind>(totals[k], stats[k], coefficients.slope), 0)) {
            careful_rows |= 1U << row[k];
            continue;
          }
          const int at = row[k] * row_bytes;
          const RowPlace place = {first_row.x + at, first_row.dy + at,
                                  p.ring_tensors < 3 ? nullptr : first_row.dresidual + at,
                                  first_row.dx + at};
          if (kLayer && __builtin_expect(corrected || exact_mean, 0)) {
            own.template Gradients<MeanCorrection::kOwn, false>(place, coefficients, held);
          } else {
            own.template Gradients<MeanCorrection::kNone, false>(place, coefficients, held);
          }
        }
        if (--steps_to_flush == 0) {
          add_to_totals();
          steps_to_flush = kPlainSumRows / kTogether;
        }
      }
      if (__builtin_expect(__any_sync(0xffffffffU, careful_rows != 0), 0)) {
        if (first_sums) add_to_totals();
        CarefulTileRows<X, kKind, V, kGranules, kLanes>(p, {first_row, tile_stats, tile_rows},
                                                        careful_rows, own.map(), own_totals);
      }
      __syncwarp();
      fill(stage, tile + p.stages * tile_step);
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1U;
      }
      tile += tile_step;
    }
    store_partials(partial);
    if (partial + 1 < p.block_partials) __syncthreads();
  }
  if constexpr (V > 1 && std::is_same_v<Launch, RingBackwardParams>) {
    if (p.dweight == nullptr && p.dbias == nullptr) return;
    SumPartialRows<X>(p, reinterpret_cast<double*>(shared));
  }
}

}  // namespace norm_device
