// What the warps of a ring share, and the order in which clusters take rows.
#pragma once

#include <cstdint>

#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

/// What a warp needs of a row's statistics to normalize it: y = ((x - mean) * rstd + correction) *
/// weight + bias.
struct alignas(16) RingScalars {
  float mean;
  float rstd;
  float correction;  // what f32 cannot hold of the mean, times -rstd
  int leaves_f32;    // the sums must be taken again in f64
};

struct RingShared {
  static constexpr int kRows = 32;  // more than rows are ahead of the one that is normalized

  TransferBarrier x_full[kMaxRingSlots];
  TransferBarrier x_empty[kMaxRingSlots];
  TransferBarrier residual_full[kMaxRingSlots];
  TransferBarrier residual_empty[kMaxRingSlots];
  TransferBarrier arrived[kRingRows + kRingRetakes];  // parts of all warps of the cluster
  TransferBarrier ready[2];                           // scalars
  TransferBarrier ready_again;
  TransferBarrier claimed[kRows];
  int64_t rows[kRows];    // the block's, in its order; negative: there are no more
  int64_t claims[kRows];  // sent by the first block of the cluster
  RingScalars scalars[2];

  /// By one thread of the feeder, which may use them at once.
  __device__ void InitFull() {
#pragma unroll 1
    for (int i = 0; i < kMaxRingSlots; ++i) {
      x_full[i].Init(1);
      residual_full[i].Init(1);
    }
    TransferBarrier::FenceInit();
    FenceBeforeBulkCopies();
  }
  /// The others, by at least kRows threads of other warps; a barrier of all users follows.
  __device__ void Init(int thread, int warps) {
    if (thread < kRows) claimed[thread].Init(1);
    if (thread < kMaxRingSlots) {
      x_empty[thread].Init(warps);
      residual_empty[thread].Init(warps);
    }
    if (thread < kRingRows + kRingRetakes) arrived[thread].Init(1);
    if (thread < 2) ready[thread].Init(1);
    if (thread == 0) ready_again.Init(1);
    TransferBarrier::FenceInit();
  }
};

/// A slot of a ring, and which round of it.
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void Advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// This block's place: which columns of which rows.
struct RingPlace {
  int rank;
  int cluster;  // among those of the request
  int clusters;
  int first_granule;
  int granules;
};

/// Where rows are claimed; without counters they are not.
struct RingClaims {
  RowClaims* counters;
  unsigned long long tag;
};

/// Rows in the order in which this cluster takes them: by turns while the rings fill for the first
/// time, then as claimed, since some multiprocessors are faster than others. By one thread.
class RingRows {
 public:
  __device__ RingRows(const RingClaims& claims, int64_t rows, const RingPlace& place, int blocks,
                      int by_turns, RingShared& shared)
      : claims_(claims),
        rows_(rows),
        place_(place),
        shared_(shared),
        blocks_(blocks),
        by_turns_(by_turns),
        are_claimed_(claims.counters != nullptr &&
                     by_turns * static_cast<int64_t>(place.clusters) < rows) {}

  /// Before the first claim is needed.
  __device__ void StartClaims() {
    if (!are_claimed_ || place_.rank != 0) return;
    AwaitCounters();
    Claim();
    SendClaim(by_turns_);
  }

  /// The block's i-th row, negative past the last. Called once for each i, in order.
  __device__ int64_t Next(int i) {
    int64_t row;
    if (!are_claimed_ || i < by_turns_) {
      row = place_.cluster + i * static_cast<int64_t>(place_.clusters);
    } else {
      const int slot = (i - by_turns_) % RingShared::kRows;
      TransferBarrier& claimed = shared_.claimed[slot];
      claimed.ArriveExpecting(sizeof(int64_t));
      claimed.Wait((i - by_turns_) / RingShared::kRows & 1);
      row = shared_.claims[slot];
      if (place_.rank == 0 && row < rows_) SendClaim(i + 1);
    }
    return row < rows_ ? row : -1;
  }

  /// After the cluster's last row. The last cluster leaves the counters to the next launch.
  __device__ void Finish() {
    if (!are_claimed_ || place_.rank != 0) return;
    __threadfence();
    if (atomicAdd(&claims_.counters->finished, 1U) + 1 == static_cast<uint32_t>(place_.clusters)) {
      __threadfence();
      atomicExch(&claims_.counters->tag, 0ULL);
    }
  }

 private:
  __device__ void SendClaim(int i) {
    const int slot = (i - by_turns_) % RingShared::kRows;
    const uint64_t claim = static_cast<uint64_t>(Claimed());
    for (int peer = 0; peer < blocks_; ++peer) {
      SendToPeer(&shared_.claims[slot], shared_.claimed[slot], peer, claim);
    }
  }

  /// The first cluster that comes sets the counters up.
  __device__ void AwaitCounters() {
    constexpr unsigned long long kBeingSet = 1ULL << 63;
    RowClaims* claims = claims_.counters;
    const unsigned long long mine = claims_.tag;
    unsigned long long seen = Read(&claims->tag);
    if (seen != mine && seen != (mine | kBeingSet) &&
        atomicCAS(&claims->tag, seen, mine | kBeingSet) == seen) {
      claims->next = 0;
      claims->finished = 0;
      __threadfence();
      atomicExch(&claims->tag, mine);
    }
    while (Read(&claims->tag) != mine) {
    }
    __threadfence();
  }
  static __device__ unsigned long long Read(const unsigned long long* value) {
    return *const_cast<const volatile unsigned long long*>(value);
  }

  /// The claim before this call's, which had time to arrive; another is on its way.
  __device__ int64_t Claimed() {
    const int64_t row = by_turns_ * static_cast<int64_t>(place_.clusters) + on_its_way_;
    Claim();
    return row;
  }
  __device__ void Claim() {
    // Nothing here waits for the result.
    asm volatile("atom.global.relaxed.gpu.add.u32 %0, [%1], 1;"
                 : "=r"(on_its_way_)
                 : "l"(&claims_.counters->next)
                 : "memory");
  }

  const RingClaims& claims_;
  int64_t rows_;
  const RingPlace& place_;
  RingShared& shared_;
  int blocks_;
  int by_turns_;
  bool are_claimed_;
  uint32_t on_its_way_ = 0;
};

}  // namespace norm_device
