// Row backward for rows that a few warps hold. A persistent block has several groups of warps; each
// owns rows of its own, which come through a ring of its own, so that one group's barrier is
// another's work. One barrier of the group a row: the warps' sums of the row meet there. dweight
// and dbias stay in f32 registers for kPlainSumRows rows; then the groups add them, one after the
// other, to sums in shared memory.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_backward_column_sums.cuh"
#include "row_norm/row_norm_backward_group_columns.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// CarefulRow out of line: its registers are no concern of the loop that calls it.
template <typename X, RowKind kKind, int V, int kElements>
__device__ __noinline__ void CarefulGroupRow(const RingBackwardParams& p, RowPlace place,
                                             GivenStats stats, WarpGroup group, double* parts,
                                             ColumnMap map, float* terms) {
  for (int e = 0; e < 2 * kElements; ++e) terms[e] = 0.0F;
  const WarpGroupSums sums = {group, parts};
  CarefulRow<X, kKind, V, kElements>(p, place, stats, sums, map,
                                     [&](int e, float dweight, float dbias) {
                                       terms[e] = dweight;
                                       terms[kElements + e] = dbias;
                                     });
}

template <typename X, RowKind kKind, int V, int kGranules, bool kAligned, int kMaxThreads,
          typename Launch>
__global__ void __launch_bounds__(kMaxThreads, 1)
    RowBackwardGroups(const __grid_constant__ Launch launch) {
  using Storage = StorageOf<X>;
  using Columns = GroupColumns<X, kKind, V, kGranules, kAligned>;
  using Exchange = GroupExchange<X, kKind, !std::is_same_v<Launch, RingBackwardParams>>;
  extern __shared__ __align__(128) char shared[];
  __shared__ StageBarrier full[kMaxGroupStages];
  __shared__ float stage_stats[kMaxGroupStages][2];  // rstd, mean
  __shared__ typename Exchange::Parts parts;
  constexpr bool kLayer = kKind == RowKind::kLayer;
  constexpr int kSize = static_cast<int>(sizeof(Storage));
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);

  const int groups = p.groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  WarpGroup group;
  group.warps = p.group_warps;
  group.warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  for (group.index = 0; group.warp >= group.warps; ++group.index) group.warp -= group.warps;
  const int thread = group.warp * kWarpThreads + lane;
  const int hidden_size = static_cast<int>(p.hidden_size);

  const int ring_bytes = p.stages * p.ring_tensors * p.tensor_bytes;
  const Ring ring = {shared + group.index * ring_bytes, full + group.index * p.stages, p};
  float(*ring_stats)[2] = stage_stats + group.index * p.stages;

  // Row i of this group is row first_row + i * row_step of the tensors.
  const int64_t first_row = static_cast<int64_t>(group.index) * p.row_blocks + block;
  const int64_t row_step = p.row_blocks * groups;
  const int rows = static_cast<int>(p.group_rows) + (first_row < p.rows_left ? 1 : 0);
  const int row_bytes = hidden_size * kSize;
  // The next row to be fetched.
  int rows_to_fill = rows;
  int64_t fill_row = first_row;
  int filling_warp = 0;
  const auto fill = [&](int stage) {
    if (rows_to_fill <= 0) return;
    const RingChunk chunk = {fill_row * row_bytes, row_bytes};
    ring.FillByOne<kAligned>(stage, chunk, lane == 0 && group.warp == filling_warp, thread,
                             group.threads(), [&](int of_stage) {
                               Ring::FillValue(&ring_stats[of_stage][0], p.rstd + fill_row);
                               if (kLayer)
                                 Ring::FillValue(&ring_stats[of_stage][1], p.mean + fill_row);
                             });
    --rows_to_fill;
    fill_row += row_step;
  };
  if (thread == 0) ring.InitForOne(group.threads());
#if __CUDA_ARCH__ < 900
  __syncthreads();  // all threads fill
#endif
  // One row at first: several would all come late.
  fill(0);
  Columns own(
      {(group.warp * kGranules * kWarpThreads + lane) * V, kWarpThreads * V, hidden_size, 0});
  own.LoadWeight(p);
  fill(1);
  parts.Clear(group);
  const int covered_bytes = Columns::kElements * group.threads() * kSize;
  if (kAligned && row_bytes < covered_bytes) {
    // What copies never write reads as zero.
#pragma unroll 1
    for (int tensor = 0; tensor < p.stages * p.ring_tensors; ++tensor) {
#pragma unroll 1
      for (int at = row_bytes + thread * kPieceBytes; at < covered_bytes;
           at += group.threads() * kPieceBytes) {
        *reinterpret_cast<uint4*>(ring.data + tensor * p.tensor_bytes + at) = uint4{};
      }
    }
  }
  group.Sync();

  const bool release_early = p.stages == 2;  // else a row's stage is filled again a row later
  const bool has_partials = p.dweight_partials != nullptr || p.dbias_partials != nullptr;
  const bool exact_mean = Exchange::kMayCorrect && HasExactMean<Launch>(p);
  const bool direct = !has_partials && (p.dweight != nullptr || p.dbias != nullptr);
  int stage = 0;
  uint32_t parity = 0;
  int rows_done = 0;  // of this partial row
  int partial = 0;
  bool first_turn = true;
  // The sums of all groups of the block, in order, one warp's columns at a time.
  const auto flush = [&](bool begins, bool ends) {
    const bool totals = p.column_totals_offset >= 0;
    const int64_t at =
        ((totals ? partial : partial * groups + group.index) * p.row_blocks + block) *
        p.hidden_size;
    if (!totals) {
      if (ends) {
        own.StorePartials(p, at);
        own.Clear();
      }
      return;
    }
    // Of a direct request a group has one row or none.
    const int adding_groups = direct ? static_cast<int>(p.rows) : groups;
    if (group.index >= adding_groups) return;
    auto* column_totals = reinterpret_cast<float*>(shared + p.column_totals_offset);
    if (adding_groups > 1 && !(first_turn && group.index == 0)) group.AwaitTurn();
    first_turn = false;
    if (!(begins && group.index == 0)) own.AddTotals(column_totals, group.warp);
    const bool last_group = group.index == adding_groups - 1;
    if (direct && last_group) {
      own.StoreGradients(p);
      return;
    }
    own.StoreTotals(column_totals, group.warp);
    if (ends && last_group) {
      own.StorePartials(p, column_totals, group.warp, at);
      if (partial + 1 == p.block_partials) return;
    }
    if (adding_groups > 1) group.HandOver(last_group ? 0 : group.index + 1);
    own.Clear();
  };

  const int partial_rows = p.partial_stages;
  int64_t offset = first_row * row_bytes;
#pragma unroll 1
  for (int i = 0; partial < p.block_partials;) {
    // Every group flushes as often as any.
    const int until = min(partial_rows, rows_done + kPlainSumRows);
#pragma unroll 1
    for (int left = min(until - rows_done, rows - i); left > 0;
         --left, ++i, offset += row_step * row_bytes) {
      ring.full[stage].Wait(parity);
      if (NeedsBarrierWhenFull() || (!kAligned && p.has_edges)) {
        const RingChunk chunk = {offset, row_bytes};
        if (ring.HasEdges(chunk)) ring.FillEdges<Storage>(stage, chunk, thread, group.threads());
        group.Sync();
      }
      GivenStats stats;
      stats.rstd = ring_stats[stage][0];
      if (kLayer) stats.mean = ring_stats[stage][1];
      const RowPlace place = {ring.Chunk<kAligned>(stage, 0, offset),
                              ring.Chunk<kAligned>(stage, 1, offset),
                              p.ring_tensors < 3 ? nullptr : ring.Chunk<kAligned>(stage, 2, offset),
                              static_cast<char*>(p.dx) + offset};
      double deviation = 0.0;
      const auto sums = exact_mean
                            ? own.template Sums<Exchange::kMayCorrect>(place, stats, &deviation)
                            : own.template Sums<false>(place, stats);
      const bool corrected = Exchange::kMayCorrect && MeanNeedsCorrection(stats);
      Exchange::Send(parts, group, sums, i & 1);
      if (Exchange::kMayCorrect && __builtin_expect(corrected, 0)) {
        Exchange::SendDeviation(parts, group, own.Deviation(place, stats), i & 1);
      }
      if (exact_mean) Exchange::SendDeviation(parts, group, deviation, i & 1);
      group.Sync();  // the sums of row i are there; row i - 1 is done with
      if (!release_early) {
        if (++filling_warp == group.warps) filling_warp = 0;
        fill(stage == 0 ? p.stages - 1 : stage - 1);
      }
      const RowTotals<float> totals =
          Exchange::Receive(parts, group, stats, hidden_size, corrected, i & 1);
      RowCoefficients<float> row = Coefficients<kKind>(totals, stats, p.column_share);
      if (__builtin_expect(!FitsF32(stats, row), 0)) {
        float terms[2 * Columns::kElements];
        CarefulGroupRow<X, kKind, V, Columns::kElements>(p, place, stats, group, parts.careful,
                                                         own.map(), terms);
        own.AddTerms(terms);
      } else if (kLayer && __builtin_expect(exact_mean, 0)) {
        row.dweight_correction = static_cast<float>(fma(Exchange::Deviation(parts, group, i & 1),
                                                        static_cast<double>(p.column_share),
                                                        -static_cast<double>(row.correction)));
        own.template Gradients<MeanCorrection::kOwn>(place, row);
      } else if (kLayer && (!Exchange::kMayCorrect || __builtin_expect(corrected, 0))) {
        own.template Gradients<MeanCorrection::kShared>(place, row);
      } else {
        own.template Gradients<MeanCorrection::kNone>(place, row);
      }
      if (release_early) {
        group.Sync();
        fill(stage);
      }
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1U;
      }
    }
    flush(rows_done == 0, until == partial_rows);
    rows_done = until;
    if (until == partial_rows) {
      rows_done = 0;
      ++partial;
    }
  }
  if constexpr (std::is_same_v<Launch, RingBackwardParams>) {
    if (!has_partials || (p.dweight == nullptr && p.dbias == nullptr)) return;
    SumPartialRows<X>(p, reinterpret_cast<double*>(shared));
  }
}

}  // namespace norm_device
