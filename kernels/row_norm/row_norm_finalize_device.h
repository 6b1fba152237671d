// How partial rows of dweight and dbias are added up, by a kernel of its own or at the end of one
// that made them. Standard library only.
#pragma once

#include <cstdint>

#include "dispatch/segment_table.h"

namespace norm_device {

/// Adds up partials in order: gradient[h] = sum_p partials[p, h]. Zero partials give zeros.
struct FinalizeParams {
  const void* dweight_partials;  // f32 or f64
  const void* dbias_partials;
  void* dweight;
  void* dbias;
  int64_t partials;
  int64_t hidden_size;
};

/// A segment has the blocks it would have alone.
using FinalizeSegments = SegmentTable<FinalizeParams, 64>;
static_assert(sizeof(FinalizeSegments) <= kMaxKernelParameterBytes);

inline constexpr int kMaxFinalizeThreads = 256;
inline constexpr int kGridFinalizeThreads = 128;  // that share some columns of short rows

/// How the threads that share some columns divide columns and partial rows.
struct FinalizeShape {
  int columns;  // of a thread: consecutive ones
  int lanes;    // that have other columns; the other threads have other partial rows
  int threads;

  constexpr int block_columns() const { return columns * lanes; }
};
constexpr FinalizeShape FinalizeShapeOf(int64_t hidden_size, bool partials_are_f64) {
  // Short rows: many small blocks keep the device busy; long ones: few that read long pieces.
  constexpr int64_t kLongRow = 16384;
  if (partials_are_f64 || hidden_size % 4 != 0) return {1, 32, kMaxFinalizeThreads};
  if (hidden_size < kLongRow) return {4, 8, kGridFinalizeThreads};
  return {4, hidden_size < 2 * kLongRow ? 16 : 32, kMaxFinalizeThreads};
}

/// Of kernels that finalize in place.
inline constexpr FinalizeShape kGridFinalizeShape = FinalizeShapeOf(0, false);
inline constexpr int kGridFinalizeDoubles = kGridFinalizeShape.columns + 1;  // shared, of a thread

}  // namespace norm_device
