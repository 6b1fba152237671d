// The rings of long rows in shared memory, and the warp that keeps them filled.
#pragma once

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_forward_ring_rows.cuh"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

/// This block's place: which columns of which rows.
struct LongPlace {
  int rank;
  int cluster;  // among those of the request
  int rows;     // of this cluster
  int units;    // of so many rows as it takes at a time
  int first_granule;
  int granules;
  int threads;     // that have columns
  int warps;       // they are in
  int slot_bytes;  // a chunk of every tensor

  __device__ LongPlace(const RingBackwardParams& p, int block, LongTile tile,
                       int granule_elements) {
    const RingShape shape({tile.granules, 1, 0}, static_cast<int>(p.hidden_size) / granule_elements,
                          p.cluster_blocks);
    rank = block % p.cluster_blocks;
    cluster = block / p.cluster_blocks;
    rows = cluster < p.rows ? static_cast<int>((p.rows - cluster - 1) / p.row_blocks) + 1 : 0;
    units = (rows + tile.rows - 1) / tile.rows;
    first_granule = shape.FirstGranule(rank);
    granules = shape.FirstGranule(rank + 1) - first_granule;
    threads = shape.threads;
    warps = shape.warps;
    slot_bytes = p.ring_tensors * p.tensor_bytes;
  }
};

/// Of the barriers that tell when sums are there: one that expects the bytes that a cluster's warps
/// send; one of each warp of a block that has no peers.
__device__ inline int LongArrivals(int blocks, int warps) { return blocks == 1 ? warps : 1; }

struct LongShared {
  static constexpr int kRows = 32;  // more than rows are in the ring, or just left it

  TransferBarrier full[kMaxLongSlots];
  TransferBarrier empty[kMaxLongSlots];
  TransferBarrier arrived[kExchangeTurns];
  TransferBarrier again[2];  // sums in f64
  float2 stats[kRows];       // rstd, mean

  /// By one thread. A slot is full when its bytes and the row's statistics are there.
  __device__ void Init(int blocks, int warps) {
#pragma unroll 1
    for (int i = 0; i < kMaxLongSlots; ++i) {
      full[i].Init(2);
      empty[i].Init(warps);
    }
    again[0].Init(LongArrivals(blocks, warps));
    again[1].Init(LongArrivals(blocks, warps));
    TransferBarrier::FenceInit();
    FenceBeforeBulkCopies();
  }
};

/// A unit in the ring, as one of the computing threads sees it.
struct LongRingUnit {
  RingCursor place;
  uint32_t first;    // granule of this thread
  uint32_t barrier;  // of the first chunk; 0: not this thread's

  __device__ void Begin(uint32_t ring, uint32_t barriers, int unit_bytes, int barrier_bytes) {
    first = ring + place.slot * unit_bytes;
    barrier = barriers == 0 ? 0 : barriers + place.slot * barrier_bytes;
    // Held in registers, not computed again.
    asm volatile("" : "+r"(first), "+r"(barrier));
  }
};

/// Fills the ring: of each unit the first granules of its rows, then the second ones.
template <typename X>
class LongFeeder {
 public:
  __device__ LongFeeder(const RingBackwardParams& p, const LongPlace& place, LongShared& shared,
                        uint32_t ring, LongTile tile, bool has_mean)
      : p_(p),
        place_(place),
        shared_(shared),
        ring_(ring),
        tile_(tile),
        slots_(p.stages * tile.granules * tile.rows),
        has_mean_(has_mean),
        all_(place.units * tile.granules * tile.rows),
        row_step_(p.row_blocks * p.hidden_size * kSize),
        offset_((place.cluster * p.hidden_size) * kSize + place.first_granule * kPieceBytes) {}

  /// Fills the ring for the first time. Needs no other warp or block.
  __device__ void Start() {
    if (threadIdx.x % kWarpThreads == 0) {
#pragma unroll 1
      for (int i = 0; i < slots_; ++i) Fill();
    }
  }
  __device__ void Run() {
    if (threadIdx.x % kWarpThreads == 0) {
      RingCursor left;
#pragma unroll 1
      while (filled_ < all_) {
        shared_.empty[left.slot].Wait(left.parity);
        left.Advance(slots_);
        Fill();
      }
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(StorageOf<X>);

  __device__ void Fill() {
    if (filled_ == all_) return;
    ++filled_;
    TransferBarrier& full = shared_.full[slot_];
    const int first = granule_ * place_.threads;
    const int granules =
        row_ + of_unit_ < place_.rows ? max(0, min(place_.threads, place_.granules - first)) : 0;
    // Threads copy unaligned rows themselves.
    const int bytes = p_.has_edges ? 0 : granules * kPieceBytes;
    full.ArriveExpecting(p_.ring_tensors * bytes);
    if (bytes > 0) {
      const uint32_t slot = ring_ + slot_ * place_.slot_bytes;
      const int64_t from = offset_ + of_unit_ * row_step_ + first * kPieceBytes;
#pragma unroll 1
      for (int i = 0; i < p_.ring_tensors; ++i) {
        StartBulkCopy(slot + i * p_.tensor_bytes, static_cast<const char*>(p_.tensors[i]) + from,
                      bytes, full);
      }
    }
    if (granule_ == 0 && of_unit_ == 0) FillStats();
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full.Address())
                 : "memory");
    if (++slot_ == slots_) slot_ = 0;
    if (++of_unit_ < tile_.rows) return;
    of_unit_ = 0;
    if (++granule_ < tile_.granules) return;
    granule_ = 0;
    row_ += tile_.rows;
    offset_ += tile_.rows * row_step_;
  }

  /// Of all rows of the unit.
  __device__ void FillStats() {
#pragma unroll 1
    for (int row = row_; row < min(row_ + tile_.rows, place_.rows); ++row) {
      const int64_t at = place_.cluster + row * p_.row_blocks;
      float2& stats = shared_.stats[row % LongShared::kRows];
      Ring::FillValue(&stats.x, p_.rstd + at);
      if (has_mean_) Ring::FillValue(&stats.y, p_.mean + at);
    }
  }

  const RingBackwardParams& p_;
  const LongPlace& place_;
  LongShared& shared_;
  uint32_t ring_;
  LongTile tile_;
  int slots_;
  bool has_mean_;
  int all_;
  int64_t row_step_;  // bytes
  int64_t offset_;    // of the unit, in bytes
  int filled_ = 0;
  int slot_ = 0;
  int granule_ = 0;
  int of_unit_ = 0;  // which of its rows
  int row_ = 0;      // the unit's first
};

}  // namespace norm_device
