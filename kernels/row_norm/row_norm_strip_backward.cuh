// Row backward by strips (row_norm_strip.cuh): lanes of a warp, or the warps of a group, own a row
// and take tiles of rows through a ring of their own; dx takes the place of x there. dweight and
// dbias add up in f32 registers over at most kPlainSumRows rows, then in f64, group
// after group in a fixed order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_rows.cuh"
#include "row_norm/row_norm_strip_columns.cuh"
#include "row_norm/row_norm_strip_device.h"
#include "row_norm/row_norm_strip_group.cuh"
#include "row_norm/row_norm_tile_ring.cuh"

namespace norm_device {

template <typename Launch, typename X, RowKind kKind, int kShape>
__global__ void __launch_bounds__(kStripBackwardThreads, 1)
    RowBackwardStrips(const __grid_constant__ Launch launch) {
  constexpr StripShape kRowShape = kStripShapes[kShape];
  constexpr int kLanes = kRowShape.lanes;
  constexpr int kWarps = kRowShape.warps;
  constexpr int kRowThreads = kRowShape.RowThreads();
  constexpr int kMaxGroups = kStripBackwardThreads / kRowShape.GroupThreads();
  constexpr StripBackwardBytes kBytes(kRowShape, kKind);
  using Storage = StorageOf<X>;
  using Group = StripGroup<kLanes, kWarps>;
  using Columns = StripColumns<X, kKind, kRowThreads, kRowShape.words>;
  using Map = typename Columns::Map;
  constexpr bool kLayer = kKind == RowKind::kLayer;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  constexpr int kElements = Columns::kElements;
  constexpr int kRowsAtOnce = kWarps > 1 ? 1 : kWarpThreads / kLanes;
  extern __shared__ __align__(kTileLineBytes) char shared[];
  __shared__ StageBarrier full[kMaxGroups][kMaxRingStages];
  __shared__ volatile int turns[kWarps];
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int groups = threads / Group::kThreads;
  const int group_index = thread / Group::kThreads;
  const int group_thread = thread % Group::kThreads;
  const int lane = thread % kWarpThreads;
  const int warp_of_group = group_thread / kWarpThreads;
  const int row_thread = group_thread % kRowThreads;
  const int hidden_size = static_cast<int>(p.hidden_size);
  const int row_bytes = hidden_size * kSize;
  const int tile_bytes = row_bytes * p.tile_rows;

  // In global memory, null where no group ever flushes its sums.
  constexpr bool kGlobalTotals = HasGlobalStripTotals(kRowShape);
  constexpr int kTotals = kBytes.totals / 8;
  double* totals = reinterpret_cast<double*>(shared);
  if (kGlobalTotals)
    totals = p.strip_totals == nullptr ? nullptr : p.strip_totals + block * kTotals;
  char* group_parts = shared + (kGlobalTotals ? 0 : kBytes.totals);
  char* rings = group_parts + groups * kBytes.group;
  const Group group = {group_parts + group_index * kBytes.group, group_index};
  const int ring_bytes = max(p.stages * p.ring_tensors * p.tensor_bytes, kBytes.sums);
  const TileRing ring(rings + group_index * ring_bytes, full[group_index],
                      {p.stages, p.ring_tensors, p.tensor_bytes}, p.tensor_size, p.has_edges);
  if (warp_of_group == 0) ring.Init();
  group.Barrier();

  const auto tensor_of = [&](int index) { return p.tensors[index]; };
  const auto tiles = static_cast<int>((p.rows + p.tile_rows - 1) / p.tile_rows);
  const int last_bytes =
      static_cast<int>(p.tensor_size - static_cast<int64_t>(tiles - 1) * tile_bytes);
  const int tile_step = static_cast<int>(p.row_blocks) * groups;
  const auto tile_at = [&](int tile) {
    return TileRing::Tile{static_cast<int64_t>(tile) * tile_bytes,
                          tile + 1 == tiles ? last_bytes : tile_bytes};
  };
  // Stages are moved in and out by the warps of the group in turn.
  const auto moves = [&](int stage) { return stage % kWarps == warp_of_group; };
  const auto fill = [&](int stage, int tile) {
    if (tile < tiles && moves(stage)) ring.Fill(stage, tile_at(tile), tensor_of);
  };
  int tile = group_index * static_cast<int>(p.row_blocks) + block;
#pragma unroll 1
  for (int stage = 0; stage < p.stages; ++stage) fill(stage, tile + stage * tile_step);

  const bool flushes_sums = !kGlobalTotals || totals != nullptr;
  if (flushes_sums) {
    for (int i = thread; i < kTotals; i += threads) totals[i] = 0.0;
  }
  if (thread < kWarps) turns[thread] = 0;
  __syncthreads();

  const Map map(hidden_size, row_thread);
  const int strip_at = row_thread * Map::kElements * kSize;
  const int extra_at = map.first_extra * kSize;
  Columns own(map, p, row_thread);

  // Flush f of a group comes after flush f of the groups before, and flush f - 1 of all.
  int flushes = 0;
  const auto flush = [&](bool adds) {
    const int turn = flushes * groups + group_index;
    while (turns[warp_of_group] != turn) {
    }
    __syncwarp();
    __threadfence_block();
    if (adds) {
      own.ForEachSum([&](int i, float& sum) {
        auto value = static_cast<double>(sum);
#pragma unroll
        for (int offset = kRowThreads; offset < kWarpThreads; offset *= 2) {
          value += __shfl_xor_sync(0xffffffffU, value, offset);
        }
        if (kRowThreads >= kWarpThreads || lane < kRowThreads) {
          totals[i * kRowThreads + row_thread] += value;
        }
        sum = 0.0F;
      });
    }
    __threadfence_block();
    __syncwarp();
    if (lane == 0) turns[warp_of_group] = turn + 1;
    ++flushes;
  };

  // Lane i holds the statistics of row i of the tile.
  const auto stats_of = [&](int of_tile) {
    GivenStats stats;
    const int64_t row = static_cast<int64_t>(of_tile) * p.tile_rows + lane;
    if (lane < p.tile_rows && row < p.rows) {
      stats.rstd = p.rstd[row];
      if (kLayer) stats.mean = p.mean[row];
    }
    return stats;
  };
  const auto store = [&](int stage, int of_tile) {
    if (!moves(stage)) return;
    const TileRing::Tile place = tile_at(of_tile);
    ring.template Store<Storage>(ring.Place(stage, 0, p.tensors[0], place),
                                 static_cast<char*>(p.dx) + place.offset, place.bytes, 0);
    TileRing::CommitStores();
  };
  const float share = 1.0F / static_cast<float>(hidden_size);
  const bool exact_mean = kLayer && HasExactMean<Launch>(p);
  // Loaded two tiles ahead, after a fence, which would wait for them.
  GivenStats next_stats = stats_of(tile);
  GivenStats stats_after = stats_of(tile + tile_step);
  int stage = 0;
  uint32_t parity = 0;
  int turn = 0;
  bool is_first = true;
  int steps_to_flush = max(kPlainSumRows * (group_index + 1) / groups, 1);
#pragma unroll 1
  for (; tile < tiles; tile += tile_step) {
    const GivenStats tile_stats = next_stats;
    next_stats = stats_after;
    const TileRing::Tile place = tile_at(tile);
    ring.Wait(stage, parity);
    if (ring.NeedsFinish()) {
      if (warp_of_group == 0) ring.template Finish<Storage>(stage, place, tensor_of);
      group.Barrier();
    }
    char* x_rows = ring.Place(stage, 0, p.tensors[0], place);
    char* dy_rows = ring.Place(stage, 1, p.tensors[1], place);
    char* dresidual_rows = p.ring_tensors < 3 ? nullptr : ring.Place(stage, 2, p.tensors[2], place);
    const int tile_rows = tile + 1 == tiles
                              ? static_cast<int>(p.rows - static_cast<int64_t>(tile) * p.tile_rows)
                              : p.tile_rows;
    const int previous = stage == 0 ? p.stages - 1 : stage - 1;
#pragma unroll 1
    for (int first_row = 0; first_row < tile_rows; first_row += kRowsAtOnce) {
      const int row = first_row + (kRowsAtOnce > 1 ? lane / kLanes : 0);
      const bool exists = kRowsAtOnce == 1 || row < tile_rows;
      const bool holds = map.holds && exists;
      const int extras = exists ? map.lane_extras : 0;
      const int at = row * row_bytes;
      GivenStats stats;
      stats.rstd = __shfl_sync(0xffffffffU, tile_stats.rstd, row);
      bool corrected = false;
      if (kLayer) {
        stats.mean = __shfl_sync(0xffffffffU, tile_stats.mean, row);
        corrected = exists && MeanNeedsCorrection(stats);
        if (kRowsAtOnce > 1) corrected = __any_sync(0xffffffffU, corrected);
      }
      own.Load(x_rows + at, dy_rows + at, strip_at, holds, extra_at, extras);
      RowTotals<float> sums;
      if (__builtin_expect(corrected, 0)) {
        sums = own.template Sums<kLayer>(stats, holds, extras);
      } else {
        sums = own.template Sums<false>(stats, holds, extras);
      }
      double corrections[3] = {static_cast<double>(sums.d), 0.0, 0.0};
      group.template SumRow<kKind>(sums, turn);
      // The second pass widens again instead of keeping wide values.
      own.Forget();
      // Strips share words with their neighbours, in rows side by side too.
      if (kWarps == 1) __syncwarp();
      if constexpr (kWarps > 1) {
        TileRing::FenceBeforeStore();
        group.Barrier();
        group.template Receive<kKind>(sums, turn);
        turn ^= 1;
        if (first_row == 0) stats_after = stats_of(tile + 2 * tile_step);
        // All threads are done with the row before; its dx leaves, and the stage of the row before
        // that is filled again.
        if (!is_first && first_row == 0) {
          store(previous, tile - tile_step);
          const int before = previous == 0 ? p.stages - 1 : previous - 1;
          if (tile >= 2 * tile_step && moves(before)) {
            TileRing::template AwaitStores<0>();
            fill(before, tile + (p.stages - 2) * tile_step);
          }
        }
        is_first = false;
      }
      if (__builtin_expect(corrected, 0)) {
        group.Sum(corrections);
        // Whether this row is corrected is its own affair.
        sums.d = MeanNeedsCorrection(stats) ? static_cast<float>(corrections[0]) : 0.0F;
      }
      RowCoefficients<float> coefficients = Coefficients<kKind>(sums, stats, share);
      if (kLayer && __builtin_expect(exact_mean, 0)) {
        double deviation[1] = {own.Deviation(stats.mean, holds, extras)};
        group.Sum(deviation);
        coefficients.dweight_correction =
            static_cast<float>(fma(deviation[0], static_cast<double>(share),
                                   -static_cast<double>(coefficients.correction)));
        corrected = true;
      }
      const bool careful = exists && !FitsF32<kKind>(sums, stats, coefficients.slope);
      const bool any_careful = kRowsAtOnce > 1 ? __any_sync(0xffffffffU, careful) : careful;
      if (__builtin_expect(any_careful, 0)) {
        float terms[2 * kElements];
        CarefulStrip<X, kKind, kRowThreads, Map::kElements, kElements>(
            p, x_rows + at, dy_rows + at, dresidual_rows == nullptr ? nullptr : dresidual_rows + at,
            stats, group,
            {row_thread * Map::kElements, holds && careful, map.first_extra, careful ? extras : 0},
            terms);
        own.AddTerms(terms);
      }
      const bool plain = !careful;
      constexpr std::integral_constant<MeanCorrection, MeanCorrection::kNone> kPlain;
      constexpr std::integral_constant<MeanCorrection, MeanCorrection::kOwn> kOwn;
      const auto gradients = [&](auto correction, auto adds) {
        own.template Gradients<decltype(correction)::value, decltype(adds)::value>(
            coefficients, x_rows + at, dresidual_rows + at, strip_at, holds && plain, extra_at,
            plain ? extras : 0);
      };
      if (dresidual_rows == nullptr) {
        if (__builtin_expect(corrected, 0)) {
          gradients(kOwn, std::false_type{});
        } else {
          gradients(kPlain, std::false_type{});
        }
      } else if (corrected) {
        gradients(kOwn, std::true_type{});
      } else {
        gradients(kPlain, std::true_type{});
      }
      if (kWarps == 1) __syncwarp();
      if (flushes_sums && --steps_to_flush == 0) {
        flush(true);
        steps_to_flush = kPlainSumRows;
      }
    }
    if constexpr (kWarps == 1) {
      TileRing::FenceBeforeStore();
      __syncwarp();
      stats_after = stats_of(tile + 2 * tile_step);
      store(stage, tile);
      TileRing::template AwaitStores<1>();
      if (tile >= tile_step) fill(previous, tile + (p.stages - 1) * tile_step);
    }
    if (++stage == p.stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
  if constexpr (kWarps > 1) {
    TileRing::FenceBeforeStore();
    group.Barrier();
    if (!is_first) store(stage == 0 ? p.stages - 1 : stage - 1, tile - tile_step);
  }
  // The turns that other groups of the block may still wait for.
  const int most_steps = (max(tiles - block, 0) + tile_step - 1) / tile_step *
                         ((p.tile_rows + kRowsAtOnce - 1) / kRowsAtOnce);
  const int most_flushes = most_steps / kPlainSumRows + 1;
#pragma unroll 1
  while (flushes_sums && flushes < most_flushes) flush(false);
  TileRing::template AwaitStores<0>();
  group.Barrier();

  // The block's partial row.
  float* sums = reinterpret_cast<float*>(rings + group_index * ring_bytes) + group_thread;
  own.ForEachSum([&](int i, float& sum) { sums[i * Group::kThreads] = sum; });
  __syncthreads();
  const int strip_columns = map.strips * Map::kElements;
#pragma unroll 1
  for (int column = thread; column < hidden_size; column += threads) {
    const int extra = column - strip_columns;
    const int owner = extra < 0 ? column / Map::kElements : extra % kRowThreads;
    const int element = extra < 0 ? column % Map::kElements : Map::kElements + extra / kRowThreads;
#pragma unroll
    for (int k = 0; k < Columns::kGradients; ++k) {
      const int i = k * kElements + element;
      double total = flushes_sums ? totals[i * kRowThreads + owner] : 0.0;
#pragma unroll 4
      for (int g = 0; g < groups; ++g) {
        const auto* of_group = reinterpret_cast<const float*>(rings + g * ring_bytes);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          total += static_cast<double>(of_group[i * Group::kThreads + r * kLanes + owner]);
        }
      }
      float* partials = k == 0 ? p.dweight_partials : p.dbias_partials;
      if (partials != nullptr) {
        partials[static_cast<int64_t>(block) * hidden_size + column] = static_cast<float>(total);
      }
    }
  }
}

}  // namespace norm_device
