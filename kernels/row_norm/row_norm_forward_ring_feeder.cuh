// The warp that keeps a block's rings filled and takes the statistics of its cluster's rows.
#pragma once

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_ring_rows.cuh"
#include "row_norm/row_norm_forward_ring_sums.cuh"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

template <RowKind kKind, typename X, int kChunks>
class RingFeeder {
 public:
  __device__ RingFeeder(const RowForwardParams& p, const RingClaims& claims, const RingShape& shape,
                        const RingSlots& slots, const RingPlace& place, RingShared& shared,
                        const RingPart* parts, uint32_t ring)
      : p_(p),
        shape_(shape),
        slots_(slots),
        place_(place),
        shared_(shared),
        parts_(parts),
        x_ring_(ring),
        residual_ring_(ring + slots.x * shape.slot_bytes),
        is_first_(threadIdx.x % kWarpThreads == 0),
        rows_(claims, p.rows, place, shape.blocks, (slots.x + kChunks - 1) / kChunks, shared) {}

  /// Fills the rings for the first time. Needs no other warp or block.
  __device__ void Start() {
    if (is_first_) shared_.InitFull();
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < slots_.x; ++i) {
      FillX();
      if (p_.residual != nullptr && i < slots_.residual) FillResidual();
    }
  }

  /// Serves the other warps in the order in which they need it: each event below waits for what
  /// they do, and they wait for what this warp does, in the same order.
  __device__ void Run() {
    const bool has_residual = p_.residual != nullptr;
    RingCursor x_empty;
    RingCursor residual_empty;
    bool retakes = false;
    int64_t row_before = -1;
    bool more = true;
    for (int i = 0; more; ++i) {
      const int64_t row = shared_.rows[i % RingShared::kRows];
      more = row >= 0;
      bool leaves = false;
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (has_residual && more) {
          shared_.residual_empty[residual_empty.slot].Wait(residual_empty.parity);
          residual_empty.Advance(slots_.residual);
          FillResidual();
        }
        if (chunk == kChunks - 1 && more) leaves = TakeStatistics(i, row);
        if (i == 0) continue;
        if (chunk == 0 && retakes) RetakeStatistics(i - 1, row_before);
        shared_.x_empty[x_empty.slot].Wait(x_empty.parity);
        x_empty.Advance(slots_.x);
        FillX();
      }
      if (i == 0) {
        if (is_first_) rows_.StartClaims();
        __syncwarp();
      }
      retakes = leaves;
      row_before = row;
    }
    if (is_first_) rows_.Finish();
  }

 private:
  /// Starts the copy of a chunk of a row, of nothing where there is no row or chunk.
  __device__ void Copy(const void* tensor, uint32_t slot, TransferBarrier& full, int64_t row,
                       int chunk) const {
    const int slot_granules = shape_.slot_bytes / kGranuleBytes;
    const int first = chunk * slot_granules;
    const int granules = max(0, min(slot_granules, place_.granules - first));
    // Threads copy unaligned rows themselves.
    const int bytes = p_.aligned && row >= 0 ? granules * kGranuleBytes : 0;
    full.ArriveExpecting(bytes);
    if (bytes == 0) return;
    const char* source = static_cast<const char*>(tensor) +
                         row * p_.hidden_size * static_cast<int64_t>(sizeof(StorageOf<X>)) +
                         static_cast<int64_t>(place_.first_granule + first) * kGranuleBytes;
    StartBulkCopy(slot, source, bytes, full);
  }

  __device__ void FillX() {
    if (is_first_ && !past_last_) {
      if (x_chunk_ == 0) {
        x_row_ = rows_.Next(x_index_);
        shared_.rows[x_index_ % RingShared::kRows] = x_row_;
      }
      Copy(p_.x, x_ring_ + x_slot_ * shape_.slot_bytes, shared_.x_full[x_slot_], x_row_, x_chunk_);
      past_last_ = x_row_ < 0;
      if (++x_slot_ == slots_.x) x_slot_ = 0;
      if (++x_chunk_ == kChunks) {
        x_chunk_ = 0;
        ++x_index_;
      }
    }
    __syncwarp();
  }

  __device__ void FillResidual() {
    if (is_first_) {
      const int64_t row = shared_.rows[residual_index_ % RingShared::kRows];
      if (row >= 0) {
        Copy(p_.residual, residual_ring_ + residual_slot_ * shape_.slot_bytes,
             shared_.residual_full[residual_slot_], row, residual_chunk_);
        if (++residual_slot_ == slots_.residual) residual_slot_ = 0;
        if (++residual_chunk_ == kChunks) {
          residual_chunk_ = 0;
          ++residual_index_;
        }
      }
    }
    __syncwarp();
  }

  using Sums = RingSums<kKind, X>;

  __device__ Sums Gathered(int buffer, uint32_t parity) {
    const int count = shape_.blocks * shape_.warps;
    TransferBarrier& arrived = shared_.arrived[buffer];
    if (is_first_) arrived.ArriveExpecting(count * Sums::kPartBytes);
    arrived.Wait(parity);
    Sums sums;
    sums.Gather(parts_ + buffer * count, count);
    return sums;
  }

  /// Of the block's i-th row. True: f32 sums left their range.
  __device__ bool TakeStatistics(int i, int64_t row) {
    const Sums sums = Gathered(i % kRingRows, i / kRingRows & 1);
    const double size = static_cast<double>(p_.hidden_size);
    const double variance = sums.Variance(size, p_.inverse_size);
    const bool leaves = SquaresLeaveF32(variance, p_.eps);
    if (is_first_) {
      Publish(i, row, sums, __frsqrt_rn(static_cast<float>(variance + p_.eps)), leaves);
      shared_.ready[i % 2].Arrive();
    }
    return leaves;
  }

  __device__ void RetakeStatistics(int i, int64_t row) {
    const Sums sums = Gathered(kRingRows + retakes_ % kRingRetakes, retakes_ / kRingRetakes & 1);
    ++retakes_;
    const double size = static_cast<double>(p_.hidden_size);
    const double variance = sums.Variance(size, p_.inverse_size);
    if (is_first_) {
      Publish(i, row, sums, static_cast<float>(ReciprocalDeviation(variance, p_.eps)), false);
      shared_.ready_again.Arrive();
    }
  }

  __device__ void Publish(int i, int64_t row, const Sums& sums, float rstd, bool leaves) {
    RingScalars scalars = {0.0F, rstd, 0.0F, leaves ? 1 : 0};
    if (kKind == RowKind::kLayer) {
      float rest;
      SplitMean(sums.Mean(static_cast<double>(p_.hidden_size), p_.inverse_size), scalars.mean,
                rest);
      scalars.correction = -rest * rstd;
    }
    shared_.scalars[i % 2] = scalars;
    if (place_.rank != 0 || leaves) return;
    if (p_.rstd != nullptr) static_cast<float*>(p_.rstd)[row] = rstd;
    if (kKind == RowKind::kLayer && p_.mean != nullptr) {
      static_cast<float*>(p_.mean)[row] = scalars.mean;
    }
  }

  static constexpr int kGranuleBytes = 16;

  const RowForwardParams& p_;
  const RingShape& shape_;
  const RingSlots& slots_;
  const RingPlace& place_;
  RingShared& shared_;
  const RingPart* parts_;
  uint32_t x_ring_;
  uint32_t residual_ring_;
  bool is_first_;
  RingRows rows_;
  // Of the first lane: what comes next into the rings.
  int x_index_ = 0;
  int x_chunk_ = 0;
  int x_slot_ = 0;
  int64_t x_row_ = 0;
  bool past_last_ = false;
  int residual_index_ = 0;
  int residual_chunk_ = 0;
  int residual_slot_ = 0;
  int retakes_ = 0;
};

}  // namespace norm_device
