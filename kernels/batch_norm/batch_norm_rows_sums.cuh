// Channel-last BatchNorm: sums over a thread's rows, in f32 over groups of rows around the first one
// of the group, in f64 over groups.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_quad.cuh"
#include "batch_norm/batch_norm_rows_ring.cuh"
#include "primitives/element_access.cuh"

namespace norm_device {
namespace rows {

/// Sums of x - reference and of its squares over a thread's rows, per channel of its granule.
/// Groups of rows are summed in f32 relative to their first row, groups in f64.
template <typename X>
struct ChannelSums {
  static constexpr int kGroupRows = 32;
  float reference[4];
  float centre[4];
  float sum[4];
  float square[4];
  double total[4] = {};
  double total_square[4] = {};
  int count = 0;  // rows of the group
  int first_chunk = 0;

  __device__ void Begin(const QuadOf<X>& raw, int chunk) {
    Quad<X>::Widen(raw, centre);
    first_chunk = chunk;
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = square[c] = 0.0F;
  }
  __device__ void Add(const QuadOf<X>& raw) {
    float values[4];
    Quad<X>::Widen(raw, values);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float d = values[c] - centre[c];
      sum[c] += d;
      square[c] = fmaf(d, d, square[c]);
    }
  }
  /// Moves the group, of chunks up to `chunk`, into the totals. Where f32 did not hold its squares
  /// the group is read again.
  __device__ void Flush(const StorageOf<X>* x, const RowsGrid& grid, const RowsPlace& place,
                        int channel, int chunk) {
    const double n = count;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (isfinite(square[c])) {
        const double offset = static_cast<double>(centre[c]) - static_cast<double>(reference[c]);
        const double s = sum[c];
        total[c] += fma(n, offset, s);
        total_square[c] += fma(offset, fma(n, offset, s + s), static_cast<double>(square[c]));
      } else {
        for (int k = first_chunk; k <= chunk; ++k) {
          const int end = min(static_cast<int>(grid.rows), place.ChunkEnd(grid, k));
#pragma unroll 1
          for (int row = place.Row(grid, k); row < end; row += place.lane_rows) {
            const float value =
                Element<X>::Widen(x[static_cast<int64_t>(row) * grid.channels + channel + c]);
            const double d = static_cast<double>(value) - static_cast<double>(reference[c]);
            total[c] += d;
            total_square[c] = fma(d, d, total_square[c]);
          }
        }
      }
    }
    count = 0;
  }
};

/// Sums of dy, dy * d, d and, if kRecompute, d * d over a thread's rows, d = x - reference, per
/// channel of its granule. Groups of rows are summed in f32 relative to their first x, groups in
/// f64.
template <typename X, bool kRecompute>
struct GradientSums {
  static constexpr int kGroupRows = 32;
  float centre[4];
  float dy[4];
  float dyd[4];
  float d[4];
  float square[4];
  double total_dy[4] = {};
  double total_dyd[4] = {};
  double total_d[4] = {};
  double total_square[4] = {};
  int count = 0;  // rows of the group
  int first_chunk = 0;

  __device__ void Begin(const QuadOf<X>& x, int chunk) {
    Quad<X>::Widen(x, centre);
    first_chunk = chunk;
#pragma unroll
    for (int c = 0; c < 4; ++c) dy[c] = dyd[c] = d[c] = square[c] = 0.0F;
  }
  __device__ void Add(const QuadOf<X>& raw_dy, const QuadOf<X>& raw_x) {
    float gradients[4];
    float values[4];
    Quad<X>::Widen(raw_dy, gradients);
    Quad<X>::Widen(raw_x, values);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float distance = values[c] - centre[c];
      dy[c] += gradients[c];
      dyd[c] = fmaf(gradients[c], distance, dyd[c]);
      d[c] += distance;
      if (kRecompute) square[c] = fmaf(distance, distance, square[c]);
    }
  }
  /// Moves the group, of chunks up to `chunk`, into the totals. Where f32 did not hold its products
  /// the group is read again.
  __device__ void Flush(const StorageOf<X>* all_dy, const StorageOf<X>* all_x, bool wide,
                        const RowsGrid& grid, const RowsPlace& place, int channel, int chunk) {
    const double n = count;
    float reference[4];
    LoadReference<X>(all_x, channel, wide, reference);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (isfinite(dyd[c]) && isfinite(dy[c]) && (!kRecompute || isfinite(square[c]))) {
        const double offset = static_cast<double>(centre[c]) - static_cast<double>(reference[c]);
        const double s = d[c];
        total_dy[c] += static_cast<double>(dy[c]);
        total_dyd[c] += fma(offset, static_cast<double>(dy[c]), static_cast<double>(dyd[c]));
        total_d[c] += fma(n, offset, s);
        if (kRecompute) {
          total_square[c] += fma(offset, fma(n, offset, s + s), static_cast<double>(square[c]));
        }
      } else {
        for (int k = first_chunk; k <= chunk; ++k) {
          const int end = min(static_cast<int>(grid.rows), place.ChunkEnd(grid, k));
#pragma unroll 1
          for (int row = place.Row(grid, k); row < end; row += place.lane_rows) {
            const int64_t at = static_cast<int64_t>(row) * grid.channels + channel + c;
            const double gradient = static_cast<double>(Element<X>::Widen(all_dy[at]));
            const double distance = static_cast<double>(Element<X>::Widen(all_x[at])) -
                                    static_cast<double>(reference[c]);
            total_dy[c] += gradient;
            total_dyd[c] = fma(gradient, distance, total_dyd[c]);
            total_d[c] += distance;
            if (kRecompute) total_square[c] = fma(distance, distance, total_square[c]);
          }
        }
      }
    }
    count = 0;
  }
};

}  // namespace rows
}  // namespace norm_device
