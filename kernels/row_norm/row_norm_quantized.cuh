// RMSNorm and LayerNorm forward with a quantized y, the row in registers. Rows of moderate numbers,
// nearly all, take a short way, others a long one. x of the next row of a warp or block arrives in
// shared memory while this one is normalized.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_quantized_any.cuh"
#include "row_norm/row_norm_quantized_device.h"
#include "row_norm/row_norm_quantized_moderate.cuh"
#include "row_norm/row_norm_quantized_owner.cuh"
#include "row_norm/row_norm_quantized_request.cuh"
#include "row_norm/row_norm_quantized_row.cuh"

namespace norm_device {

/// Reads x of a row; x + residual, rounded and stored as the sum, where there is a residual. Zeros
/// past the row's end.
template <typename Columns>
__device__ void ReadRow(const RowForwardParams& p, const Columns& columns, int64_t index,
                        bool exists, typename Columns::Granule (&x)[Columns::kGranules]) {
  using Granule = typename Columns::Granule;
  using Storage = StorageOf<typename Columns::X>;
  const int64_t offset = index * p.hidden_size + columns.first();
  const auto* source = static_cast<const Storage*>(p.x) + offset;
#pragma unroll
  for (int g = 0; g < Columns::kGranules; ++g) {
    x[g] = Granule::Zero();
    if (exists && columns.Holds(g)) x[g] = Granule::Load(source + g * Columns::kStep, p.aligned);
  }
  if (p.residual == nullptr || !exists) return;
  const auto* residual = static_cast<const Storage*>(p.residual) + offset;
  auto* sum = static_cast<Storage*>(p.residual_sum) + offset;
#pragma unroll
  for (int g = 0; g < Columns::kGranules; ++g) {
    if (columns.Holds(g)) {
      const Granule added = Granule::Load(residual + g * Columns::kStep, p.aligned);
      float sums[Columns::V];
#pragma unroll
      for (int i = 0; i < Columns::V; ++i) sums[i] = x[g].Wide(i) + added.Wide(i);
      x[g] = Granule::Rounded(sums);
      x[g].Store(sum + g * Columns::kStep, p.aligned);
    }
  }
}

/// Whether x can come through RowFeed.
template <typename Feed>
__device__ bool CanFeed(const RowForwardParams& p) {
  return Feed::kExists && p.aligned && p.residual == nullptr;
}

/// Of requests that can be fed: weight and bias (of kLayer) are there, and rows fill their threads.
/// None of short rows, which have no code of their own for them.
template <RowKind kKind, int kElements, typename Owner>
__device__ bool IsPlain(const RowForwardParams& p) {
  return Owner::kLanesPerRow == kWarpThreads && p.weight != nullptr &&
         (kKind == RowKind::kRms ? p.weight_offset == 0.0 : p.bias != nullptr) &&
         p.hidden_size == kElements * Owner::threads_per_row();
}

template <typename Pair, RowKind kKind, typename Owner, int kElements, int kRegisters>
__global__ void __maxnreg__(kRegisters)
    RowForwardQuantized(const __grid_constant__ RowForwardParams p) {
  using Columns = QuantizedColumns<Pair, kKind, Owner, kElements>;
  using Granule = typename Columns::Granule;
  using Feed = RowFeed<Columns, Owner>;
  extern __shared__ __align__(128) uint8_t slots[];
  __shared__ TransferBarrier barriers[kMaxQuantizedBlockThreads / kWarpThreads];
  __shared__ typename Owner::Scratch scratch;
  Owner owner(scratch);
  const Columns columns(p, owner);
  const QuantizedRequest request(p);
  const bool moderate = IsModerate(p);
  const bool fed = moderate && CanFeed<Feed>(p);
  const bool plain = fed && IsPlain<kKind, kElements, Owner>(p);
  const int rows_per_block = Owner::rows_per_block();
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * rows_per_block;
  int64_t block_row = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  Feed feed(p, slots, barriers);
  if (fed) feed.Start(block_row + Owner::row_in_block());
#pragma unroll 1
  for (; block_row < p.rows; block_row += row_step) {
    const int64_t index = block_row + Owner::row_in_block();
    const bool exists = Owner::kWholeBlock || index < p.rows;
    const auto done = [&] {
      if (!Owner::kWholeBlock) __syncwarp();
      feed.Start(index + row_step);
    };
    bool written = false;
    if (plain) {
      ModerateRow<Pair, kKind, Owner, kElements, true> row(p, request, columns, owner, index,
                                                           exists);
      const auto fetch = [&](int from, auto& affine) { columns.Fetch(from, affine); };
      const auto take = [&](auto& x) {
        feed.Wait(index);
        feed.Take(x);
      };
      written = request.scales_rows ? row.template Write<true>(fetch, take, done)
                                    : row.template Write<false>(fetch, take, done);
    } else {
      ModerateRow<Pair, kKind, Owner, kElements, false> row(p, request, columns, owner, index,
                                                            exists);
      const auto fetch = [&](int from, auto& affine) { columns.FetchAny(p, from, affine); };
      const auto take = [&](auto& x) {
        if (fed) {
          feed.Wait(index);
          feed.Take(x);
        } else {
          ReadRow(p, columns, index, exists, x);
        }
      };
      const auto done_if_fed = [&] {
        if (fed) done();
      };
      if (moderate) {
        written = request.scales_rows ? row.template Write<true>(fetch, take, done_if_fed)
                                      : row.template Write<false>(fetch, take, done_if_fed);
      } else if (p.residual != nullptr) {
        Granule x[Columns::kGranules];
        take(x);
      }
    }
    // Rows that share a warp stay together.
    if (Owner::AnyRow(exists && !written)) {
      AnyRow<Pair, kKind, Owner, kElements>(p, request, columns, owner, index, exists && !written)
          .Write();
    }
  }
}

template <typename Pair, RowKind kKind, QuantizedRowMethod kMethod, typename Owner>
const void* QuantizedRowOf() {
  constexpr int kBytes = static_cast<int>(sizeof(StorageOf<typename Pair::Activation>));
  constexpr int kElements = QuantizedRowElements(kMethod);
  constexpr int kRegisters = QuantizedRowRegisters(kMethod, kKind, kBytes);
  if constexpr (QuantizedMethodServes(kMethod, kKind, kBytes)) {
    return reinterpret_cast<const void*>(
        &RowForwardQuantized<Pair, kKind, Owner, kElements, kRegisters>);
  } else {
    return nullptr;
  }
}

template <typename Pair, RowKind kKind>
const void* SelectQuantizedRow(QuantizedRowMethod method) {
  switch (method) {
    case QuantizedRowMethod::kLanes8:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kLanes8, QuantizedLanes<8>>();
    case QuantizedRowMethod::kLanes16:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kLanes16, QuantizedLanes<16>>();
    case QuantizedRowMethod::kWarp:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kWarp, QuantizedLanes<32>>();
    case QuantizedRowMethod::kBlock:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kBlock, QuantizedBlock>();
    case QuantizedRowMethod::kWideBlock:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kWideBlock, QuantizedBlock>();
    case QuantizedRowMethod::kLongBlock:
      return QuantizedRowOf<Pair, kKind, QuantizedRowMethod::kLongBlock, QuantizedBlock>();
  }
  return nullptr;
}

template <typename Pair>
const void* QuantizedRowKernel(RowKind kind, QuantizedRowMethod method) {
  return kind == RowKind::kRms ? SelectQuantizedRow<Pair, RowKind::kRms>(method)
                               : SelectQuantizedRow<Pair, RowKind::kLayer>(method);
}

}  // namespace norm_device
