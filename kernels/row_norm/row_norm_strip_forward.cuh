// RMSNorm and LayerNorm forward by strips (row_norm_strip.cuh): lanes of a warp, or a few warps, share
// a row and take tiles of rows through a ring of their own. The outputs take the places of the inputs.
#pragma once

#include <cstdint>

#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_forward.cuh"
#include "row_norm/row_norm_strip_affine.cuh"
#include "row_norm/row_norm_strip_device.h"
#include "row_norm/row_norm_strip_statistics.cuh"
#include "row_norm/row_norm_tile_ring.cuh"

namespace norm_device {

/// x + added, rounded to the type of x.
template <typename X, int kWords>
__device__ void AddStrip(Strip<X, kWords>& x, const Strip<X, kWords>& added) {
  constexpr int kPerWord = Strip<X, kWords>::kPerWord;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    float sum[kPerWord];
#pragma unroll
    for (int k = 0; k < kPerWord; ++k) {
      sum[k] = x.Wide(i * kPerWord + k) + added.Wide(i * kPerWord + k);
    }
    uint32_t packed[1];
    WordCodec<X>::template Narrow<kPerWord>(sum, packed);
    x.words[i] = packed[0];
  }
}

template <RowLaunchKind kLaunch, typename X, RowKind kKind, int kShape>
__global__ void __launch_bounds__(kStripShapes[kShape].forward_threads,
                                  kStripShapes[kShape].forward_resident)
    RowForwardStrips(const __grid_constant__ typename RowLaunchParams<kLaunch>::Type launch) {
  constexpr StripShape kRowShape = kStripShapes[kShape];
  constexpr int kLanes = kRowShape.lanes;
  constexpr int kWarps = kRowShape.warps;
  constexpr int kWords = kRowShape.words;
  constexpr int kRowThreads = kRowShape.RowThreads();
  constexpr int kMaxGroups = kRowShape.forward_threads / kRowShape.GroupThreads();
  constexpr int kRowsAtOnce = kWarps > 1 ? 1 : kWarpThreads / kLanes;
  using S = Strip<X, kWords>;
  using Owner = StripOwner<kLanes, kWarps>;
  using Row = StripRow<X, kRowThreads, kWords>;
  using Storage = StorageOf<X>;
  using One = PackedGranule<X, 1>;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  constexpr int kAffineBytes = StripAffineBytes(kRowShape, kKind);
  extern __shared__ __align__(kTileLineBytes) char shared[];
  __shared__ StageBarrier full[kMaxGroups][kMaxStripStages];
  __shared__ typename Owner::Scratch scratch[kWarps == 1 ? 1 : kMaxGroups];
  int first_block = 0;
  int blocks = static_cast<int>(gridDim.x);
  const RowForwardParams& p =
      RowLaunchParams<kLaunch>::Request(launch, static_cast<int>(blockIdx.x), first_block, blocks);
  const int block = static_cast<int>(blockIdx.x) - first_block;

  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / Owner::kThreads;
  const int groups = static_cast<int>(blockDim.x) / Owner::kThreads;
  const int lane = thread % kWarpThreads;
  const int row_thread = thread % kRowThreads;
  const int hidden_size = static_cast<int>(p.hidden_size);
  const int row_bytes = hidden_size * kSize;
  const bool has_residual = p.residual != nullptr;
  const int most_rows = StripForwardTileRows(kRowShape, hidden_size, has_residual);
  const int tile_bytes = row_bytes * most_rows;
  TileRing::Shape shape = {0, has_residual ? 2 : 1, TilePlaceBytes(most_rows, hidden_size)};
  shape.stages = min((static_cast<int>(DynamicSharedBytes()) - kAffineBytes) /
                         (groups * shape.tensors * shape.tensor_bytes),
                     kMaxStripStages);
  const int ring_bytes = shape.stages * shape.tensors * shape.tensor_bytes;
  const int64_t tensor_size = p.rows * row_bytes;
  const bool has_edges =
      ((reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.residual) | tensor_size) %
       kPieceBytes) != 0;
  const TileRing ring(shared + kAffineBytes + group * ring_bytes, full[group], shape, tensor_size,
                      has_edges);
  Owner owner(scratch[kWarps == 1 ? 0 : group], group);
  const auto tensor_of = [&](int index) { return index == 0 ? p.x : p.residual; };
  const auto tiles = static_cast<int>((p.rows + most_rows - 1) / most_rows);
  const int last_bytes =
      static_cast<int>(tensor_size - static_cast<int64_t>(tiles - 1) * tile_bytes);
  const int tile_step = blocks * groups;
  const auto tile_at = [&](int tile) {
    return TileRing::Tile{static_cast<int64_t>(tile) * tile_bytes,
                          tile + 1 == tiles ? last_bytes : tile_bytes};
  };
  const int first_tile = group * blocks + block;
  const int mover = thread / kWarpThreads % kWarps;  // of which stages this warp is the mover
  if (mover == 0) ring.Init();
  owner.Barrier();
#pragma unroll 1
  for (int stage = 0; stage < shape.stages; ++stage) {
    const int tile = first_tile + stage * tile_step;
    if (stage % kWarps == mover && tile < tiles) ring.Fill(stage, tile_at(tile), tensor_of);
  }

  const StripAffine<X, kKind, kWords> affine(shared);
  affine.Load(p);
  __syncthreads();

  const StripMap<X, kRowThreads, kWords> map(hidden_size, row_thread);
  const int strip_at = row_thread * S::kElements * kSize;
  const int extra_at = map.first_extra * kSize;
  const bool round_first = kSize < 4 && p.round_normalized;
  // Fills the stage of the tile before once its output has left. A warp that has tiles for itself does
  // so as soon as the first rows of a tile have statistics.
  constexpr bool kRefillsEarly = kWarps == 1;
  const auto refill = [&](int tile, int stage) {
    const int previous = stage == 0 ? shape.stages - 1 : stage - 1;
    if (previous % kWarps != mover) return;
    TileRing::AwaitStores<0>();
    const int next_tile = tile + (shape.stages - 1) * tile_step;
    if (next_tile < tiles) ring.Fill(previous, tile_at(next_tile), tensor_of);
  };
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int tile = first_tile; tile < tiles; tile += tile_step) {
    const TileRing::Tile place = tile_at(tile);
    ring.Wait(stage, parity);
    if (ring.NeedsFinish()) {
      if (mover == 0) ring.template Finish<Storage>(stage, place, tensor_of);
      owner.Barrier();
    }
    char* x_rows = ring.Place(stage, 0, p.x, place);
    char* y_rows = has_residual ? ring.Place(stage, 1, p.residual, place) : x_rows;
    const int tile_rows = tile + 1 == tiles
                              ? static_cast<int>(p.rows - static_cast<int64_t>(tile) * most_rows)
                              : most_rows;
    float tile_rstd = 0.0F;
    float tile_mean = 0.0F;
#pragma unroll 1
    for (int first_row = 0; first_row < tile_rows; first_row += kRowsAtOnce) {
      const int row_of_tile = first_row + (kRowsAtOnce == 1 ? 0 : lane / kLanes);
      const bool exists = kRowsAtOnce == 1 || row_of_tile < tile_rows;
      const int at = row_of_tile * row_bytes;
      Row row;
      row.holds = exists && map.holds;
      row.extras = exists ? map.lane_extras : 0;
      const auto extra_of = [&](const char* rows, int i) {
        return One::Load(reinterpret_cast<const Storage*>(rows + at + extra_at) + i * kRowThreads,
                         true);
      };
      if (row.holds) row.strip.Load(x_rows + at + strip_at);
#pragma unroll
      for (int i = 0; i < Row::kMaxExtras; ++i) {
        if (i < row.extras) row.extra[i] = extra_of(x_rows, i);
      }
      if (has_residual) {
        if (row.holds) {
          S added;
          added.Load(y_rows + at + strip_at);
          AddStrip(row.strip, added);
        }
#pragma unroll
        for (int i = 0; i < Row::kMaxExtras; ++i) {
          if (i < row.extras) {
            const float sum[1] = {row.extra[i].Wide(0) + extra_of(y_rows, i).Wide(0)};
            row.extra[i] = One::Rounded(sum);
          }
        }
      }
      const RowStats<float> stats = StripStatistics<kKind>(row, owner, p);
      if (kRefillsEarly && first_row == 0 && tile != first_tile) refill(tile, stage);
      // Lane i keeps those of row i.
      const int from = (lane - first_row) * kLanes % kWarpThreads;
      const float rstd = __shfl_sync(0xffffffffU, stats.rstd, from);
      const float mean = kKind == RowKind::kLayer
                             ? __shfl_sync(0xffffffffU, stats.mean + stats.mean_correction, from)
                             : 0.0F;
      if (lane >= first_row && lane < first_row + kRowsAtOnce) {
        tile_rstd = rstd;
        tile_mean = mean;
      }
      const auto store = [&](char* rows) {
        if (row.holds) row.strip.Store(rows + at + strip_at);
#pragma unroll
        for (int i = 0; i < Row::kMaxExtras; ++i) {
          if (i < row.extras) {
            row.extra[i].Store(reinterpret_cast<Storage*>(rows + at + extra_at) + i * kRowThreads,
                               true);
          }
        }
      };
      // Strips share words with their neighbours, in rows side by side too.
      if (kWarps == 1) __syncwarp();
      if (has_residual) store(x_rows);
      const RowNormalizer<kKind, X> normalize(stats);
      if (row.holds) affine.Apply(normalize, round_first, row_thread, row.strip);
#pragma unroll
      for (int i = 0; i < Row::kMaxExtras; ++i) {
        if (i < row.extras) {
          row.extra[i] = affine.ApplyOne(normalize, round_first, map.first_extra + i * kRowThreads,
                                         row.extra[i]);
        }
      }
      store(y_rows);
      if (kWarps == 1) __syncwarp();
    }
    TileRing::FenceBeforeStore();
    owner.Barrier();
    if (stage % kWarps == mover) {
      if (lane < tile_rows) {
        const int64_t row = static_cast<int64_t>(tile) * most_rows + lane;
        if (p.rstd != nullptr) static_cast<float*>(p.rstd)[row] = tile_rstd;
        if (kKind == RowKind::kLayer && p.mean != nullptr) {
          static_cast<float*>(p.mean)[row] = tile_mean;
        }
      }
      if (has_residual) {
        ring.template Store<Storage>(x_rows, static_cast<char*>(p.residual_sum) + place.offset,
                                     place.bytes, 0);
        ring.template Store<Storage>(y_rows, static_cast<char*>(p.y) + place.offset, place.bytes,
                                     1);
      } else {
        ring.template Store<Storage>(x_rows, static_cast<char*>(p.y) + place.offset, place.bytes,
                                     0);
      }
      TileRing::CommitStores();
    }
    if (!kRefillsEarly && tile != first_tile) refill(tile, stage);
    if (++stage == shape.stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
}

}  // namespace norm_device
