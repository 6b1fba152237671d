// What one of the computing threads of a block sees of the ring of long rows: its granules of the
// unit that arrives and of the one that leaves.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// The granules of a chunk that a thread has.
template <typename X>
struct LongChunk {
  using Packed = PackedGranule<X, kWideElements<X>>;

  Packed x;
  Packed dy;
  Packed added;
};

/// kPlain: pointers are aligned and there is no dresidual_sum.
template <typename X, int kGranules, int kRows, bool kPlain>
class LongThreadRing {
 public:
  static constexpr int V = kWideElements<X>;
  using Chunk = LongChunk<X>;
  using Packed = typename Chunk::Packed;

  __device__ LongThreadRing(const RingBackwardParams& p, const LongPlace& place, LongShared& shared,
                            uint32_t ring)
      : p_(p),
        cluster_(place.cluster),
        rows_(place.rows),
        thread_(min(static_cast<int>(threadIdx.x), place.threads - 1)),
        ring_(ring + thread_ * kPieceBytes),
        column_((place.first_granule + thread_) * V),
        active_(static_cast<int>(threadIdx.x) < place.threads),
        has_last_(active_ &&
                  (kGranules - 1) * place.threads + static_cast<int>(threadIdx.x) < place.granules),
        full_(shared.full[0].Address()),
        empty_(threadIdx.x % kWarpThreads == 0 ? shared.empty[0].Address() : 0) {
    arriving_.Begin(ring_, full_, ChunkOffset(kChunks), kUnitBarrierBytes);
    leaving_.Begin(ring_, empty_, ChunkOffset(kChunks), kUnitBarrierBytes);
  }

  /// The last thread with columns where this one has none.
  __device__ int thread() const { return thread_; }
  __device__ int column() const { return column_; }
  __device__ int chunk_columns() const {
    return p_.tensor_bytes / static_cast<int>(sizeof(StorageOf<X>));
  }
  /// The last warp may have more lanes than there is work for.
  __device__ bool active() const { return active_; }
  /// This thread has all kGranules granules; one fewer otherwise.
  __device__ bool has_last() const { return has_last_; }
  __device__ bool Has(int g) const { return g < kGranules - 1 ? active_ : has_last_; }
  /// Whether a unit has row r; the first is always there.
  __device__ bool HasRow(int unit, int r) const { return r == 0 || unit * kRows + r < rows_; }
  __device__ int64_t RowOffset(int row) const {
    return (cluster_ + row * p_.row_blocks) * p_.hidden_size + column_;
  }
  /// The bytes of a chunk's slot after those of the unit's first one.
  __device__ int ChunkOffset(int chunk) const { return chunk * ring_tensors() * p_.tensor_bytes; }
  /// Of the unit that leaves.
  __device__ uint32_t leaving_first() const { return leaving_.first; }

  /// Returns when the first chunk of the unit that arrives is there, and its statistics.
  __device__ void AwaitUnit() const { WaitForBarrier(arriving_.barrier, arriving_.place.parity); }
  /// A chunk, when it is there. After AwaitUnit.
  __device__ Chunk Arrive(int unit, int chunk) const {
    const int g = chunk / kRows;
    const int r = chunk % kRows;
    if (chunk > 0) {
      WaitForBarrier(arriving_.barrier + chunk * kBarrierBytes, arriving_.place.parity);
    }
    if (!kPlain && p_.has_edges) {
      if (Has(g)) CopyUnaligned(RowOffset(unit * kRows + r) + g * chunk_columns(), chunk);
      __syncwarp();
    }
    Chunk arrived;
    arrived.x = Load(arriving_, g, r, 0);
    arrived.dy = Load(arriving_, g, r, 1);
    return arrived;
  }
  /// The next unit arrives.
  __device__ void AdvanceArriving() {
    arriving_.place.Advance(p_.stages);
    arriving_.Begin(ring_, full_, ChunkOffset(kChunks), kUnitBarrierBytes);
  }

  /// A chunk, whose slot is free then.
  __device__ Chunk Leave(int chunk) const {
    const int g = chunk / kRows;
    const int r = chunk % kRows;
    Chunk left;
    left.x = Load(leaving_, g, r, 0);
    left.dy = Load(leaving_, g, r, 1);
    if (!kPlain && p_.ring_tensors > 2) left.added = Load(leaving_, g, r, 2);
    if (!kPlain) FenceBeforeBulkCopies();
    __syncwarp();
    if (leaving_.barrier != 0) ArriveAtBarrier(leaving_.barrier + chunk * kBarrierBytes);
    return left;
  }
  /// The next unit leaves.
  __device__ void AdvanceLeaving() {
    leaving_.place.Advance(p_.stages);
    leaving_.Begin(ring_, empty_, ChunkOffset(kChunks), kUnitBarrierBytes);
  }

 private:
  static constexpr int kChunks = kGranules * kRows;
  static constexpr int kBarrierBytes = sizeof(TransferBarrier);
  static constexpr int kUnitBarrierBytes = kChunks * kBarrierBytes;

  __device__ int ring_tensors() const { return kPlain ? 2 : p_.ring_tensors; }
  /// A thread's granule of a row, of its first one where it has none.
  __device__ Packed Load(const LongRingUnit& unit, int g, int r, int tensor) const {
    const int offset = ChunkOffset((g < kGranules - 1 || has_last_ ? g * kRows : 0) + r);
    return LoadShared<X, V>(unit.first + offset + tensor * p_.tensor_bytes);
  }
  /// What bulk copies cannot: this thread's own granules, by single elements.
  __device__ void CopyUnaligned(int64_t offset, int chunk) const {
#pragma unroll 1
    for (int tensor = 0; tensor < p_.ring_tensors; ++tensor) {
      StoreShared(
          arriving_.first + ChunkOffset(chunk) + tensor * p_.tensor_bytes,
          Packed::Load(static_cast<const StorageOf<X>*>(p_.tensors[tensor]) + offset, false));
    }
  }

  const RingBackwardParams& p_;
  int cluster_;
  int rows_;
  int thread_;
  uint32_t ring_;  // this thread's first granule
  int column_;
  bool active_;
  bool has_last_;
  uint32_t full_;
  uint32_t empty_;  // 0: another lane leaves for the warp
  LongRingUnit arriving_;
  LongRingUnit leaving_;
};

}  // namespace norm_device
