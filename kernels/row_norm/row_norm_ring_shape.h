// How a cluster divides rows that pass through rings in shared memory: what the planning host and
// the kernel both compute. Standard library only.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define NORM_RING_FUNCTION __host__ __device__ constexpr
#else
#define NORM_RING_FUNCTION constexpr
#endif

namespace norm_device {

/// Granules of 16 bytes that a thread has of a row, and of one slot of the ring; and most threads
/// of a block that normalize: their registers hold weight and bias of as many granules.
struct RingGranules {
  int of_row;
  int of_slot;
  int max_threads;
};
inline constexpr RingGranules kShortRingGranules = {5, 5, 480};
inline constexpr RingGranules kLongRingGranules = {12, 4, 352};

/// A warp that feeds them comes on top.
inline constexpr int kRingFeederThreads = 32;
inline constexpr int kMaxRingSlots = 16;
inline constexpr int kMaxRingBlocks = 16;

/// Sums of one warp over its part of a row.
struct RingPart {
  double sum;
  double squares;
  float shift;  // what was subtracted from each value
  float count;
};
/// Rows whose parts may be on their way at once: a block may be two rows ahead of another, which
/// itself still reads an older one; and two rows whose parts were taken again in f64.
inline constexpr int kRingRows = 4;  // a power of two
inline constexpr int kRingRetakes = 2;

/// Rows are claimed in order from a counter in global memory, since multiprocessors differ in speed.
struct RowClaims {
  unsigned long long tag;  // of the launch that uses the counters; 0: none
  uint32_t next;
  uint32_t finished;  // clusters
};

/// What one hidden size means for a block.
struct RingShape {
  int row_granules;
  int blocks;   // of a cluster, which share a row; a power of two
  int threads;  // of a block, that normalize
  int warps;    // they are in
  int slot_bytes;
  int part_bytes;  // of shared memory, for RingPart

  NORM_RING_FUNCTION RingShape(RingGranules granules, int row_granules_, int blocks_)
      : row_granules(row_granules_),
        blocks(blocks_),
        threads(RoundUp(CeilDiv(CeilDiv(row_granules_, blocks_), granules.of_row), 8)),
        warps(CeilDiv(threads, 32)),
        slot_bytes(granules.of_slot * threads * 16),
        part_bytes(RoundUp(
            (kRingRows + kRingRetakes) * blocks_ * warps * static_cast<int>(sizeof(RingPart)),
            128)) {}

  NORM_RING_FUNCTION int FirstGranule(int rank) const {
    return static_cast<int>(static_cast<uint32_t>(row_granules) * static_cast<uint32_t>(rank) /
                            static_cast<uint32_t>(blocks));
  }
  NORM_RING_FUNCTION int LaunchThreads() const { return warps * 32 + kRingFeederThreads; }
  /// Slots that `bytes` bytes of shared memory hold.
  NORM_RING_FUNCTION int Slots(int bytes) const {
    const int slots = (bytes - part_bytes) / slot_bytes;
    return slots < kMaxRingSlots ? slots : kMaxRingSlots;
  }

 private:
  static NORM_RING_FUNCTION int CeilDiv(int a, int b) { return (a + b - 1) / b; }
  static NORM_RING_FUNCTION int RoundUp(int a, int b) { return CeilDiv(a, b) * b; }
};

/// How slots are shared out: the row that is normalized and part of the next wait in those of x.
struct RingSlots {
  int x;
  int residual;

  NORM_RING_FUNCTION RingSlots(RingGranules granules, int slots, bool has_residual)
      : x(slots), residual(0) {
    if (has_residual) {
      // A chunk of the residual is fetched after the same chunk of x.
      residual = (slots - granules.of_row / granules.of_slot - 1) / 2;
      x = slots - residual;
    }
  }
};
/// With a residual: one slot of it, and two more of x than a row has.
constexpr int MinRingSlots(RingGranules granules) { return granules.of_row / granules.of_slot + 3; }

}  // namespace norm_device

#undef NORM_RING_FUNCTION
