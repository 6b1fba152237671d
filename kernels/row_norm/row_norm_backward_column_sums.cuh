// How threads add up partial rows of a few columns: in f64, in a fixed order.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>
#include <utility>

#include "primitives/element_access.cuh"
#include "row_norm/row_norm_backward_device.h"

namespace norm_device {

/// Of `lanes` x `rows` threads, a lane's V columns each; row y of the threads adds up partial rows
/// y, y + rows, ... `shared`: V + 1 doubles a thread.
template <typename Partial, int V>
class ColumnSums {
 public:
  __device__ ColumnSums(int lanes, int rows, int thread, double* shared)
      : shared_(shared),
        lanes_(lanes),
        rows_(rows),
        lane_(thread % lanes),
        row_(thread / lanes),
        parts_(rows / V),
        part_(thread % parts_),
        column_(thread / parts_) {}

  /// Which of the columns this thread's total is of, if it has one.
  __device__ int column() const { return column_; }
  __device__ bool has_total() const { return part_ == 0; }

  /// Reached by all the threads, which `sync` makes wait for each other.
  template <typename Sync>
  __device__ double Total(const Partial* partials, int64_t partial_rows, int64_t hidden_size,
                          int64_t first_column, Sync&& sync) const {
    double sums[V] = {};
    const int64_t column = first_column + lane_ * V;
    if (column < hidden_size) {
      const Partial* partial = partials + row_ * hidden_size + column;
      const int64_t step = rows_ * hidden_size;
      int64_t i = row_;
#pragma unroll 1
      do {
        Values values[kAtOnce] = {};
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (i + k * rows_ < partial_rows) values[k] = Load(partial + k * step);
        }
        partial += kAtOnce * step;
#pragma unroll
        for (int v = 0; v < V; ++v) {
          // A few in their own type: conversions are slow.
#pragma unroll
          for (int first = 0; first < kAtOnce; first += kFew) {
            Partial few = values[first].of[v];
#pragma unroll
            for (int k = 1; k < kFew; ++k) few += values[first + k].of[v];
            sums[v] += static_cast<double>(few);
          }
        }
        i += kAtOnce * rows_;
      } while (i < partial_rows);
    }
    // Threads' sums by rows, each with a place left over against bank conflicts.
    const int pitch = lanes_ * V + 1;
    sync();
#pragma unroll
    for (int v = 0; v < V; ++v) shared_[row_ * pitch + lane_ * V + v] = sums[v];
    sync();
    // Consecutive lanes take the sums of one column, V rows each.
    double total = 0.0;
#pragma unroll
    for (int y = 0; y < V; ++y) total += shared_[(part_ * V + y) * pitch + column_];
    for (int offset = parts_ / 2; offset > 0; offset /= 2) {
      total += __shfl_xor_sync(0xffffffffU, total, offset);
    }
    return total;
  }

 private:
  struct alignas(sizeof(Partial) * V) Values {
    Partial of[V];
  };
  // Loads of a thread: all of them, of a partial row a multiprocessor.
  static constexpr int kFew = 5;
  static constexpr int kAtOnce = 2 * kFew;

  /// Not through the first-level cache, which knows nothing of other blocks' writes.
  __device__ static Values Load(const Partial* partial) {
    Values values;
    if constexpr (sizeof(Values) == 16) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(partial));
      values = reinterpret_cast<const Values&>(four);
    } else {
      values.of[0] = __ldcg(partial);
    }
    return values;
  }

  double* shared_;
  int lanes_;
  int rows_;
  int lane_;
  int row_;
  int parts_;  // of a column
  int part_;
  int column_;
};

/// An address's translation on its way.
__device__ inline void Prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// The end of a kernel whose blocks are all resident: when all have stored their partial rows, they
/// share the columns among them. Reached by all threads of all blocks, of at least
/// kGridFinalizeThreads each. `shared`: kGridFinalizeDoubles a thread.
template <typename X>
__device__ void SumPartialRows(const RingBackwardParams& p, double* shared) {
  auto arrival = cooperative_groups::this_grid().barrier_arrive();
  constexpr FinalizeShape kShape = kGridFinalizeShape;
  constexpr int kColumns = kShape.columns;
  const int unit = static_cast<int>(threadIdx.x) / kGridFinalizeThreads;
  const int units = static_cast<int>(blockDim.x) / kGridFinalizeThreads;
  const ColumnSums<float, kColumns> sums(
      kShape.lanes, kGridFinalizeThreads / kShape.lanes,
      static_cast<int>(threadIdx.x) % kGridFinalizeThreads,
      shared + unit * kGridFinalizeThreads * kGridFinalizeDoubles);
  const auto sync = [&]() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + unit), "n"(kGridFinalizeThreads) : "memory");
  };
  // Slices of columns, dweight's before dbias's, go to all blocks before any gets a second one.
  constexpr int kSliceColumns = kColumns * kShape.lanes;
  const int slices = (static_cast<int>(p.hidden_size) + kSliceColumns - 1) / kSliceColumns;
  const int all_slices = (p.dbias == nullptr ? 1 : 2) * slices;
  const int step = units * static_cast<int>(gridDim.x);
  int slice = unit * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (unit >= units) slice = all_slices;
  bool waited = false;
#pragma unroll 1
  do {
    const bool of_weight = slice < slices;
    void* gradient = of_weight ? p.dweight : p.dbias;
    const int first_column = (of_weight ? slice : slice - slices) * kSliceColumns;
    const int64_t column = first_column + sums.column();
    if (slice < all_slices && gradient != nullptr) {
      const float* partials = of_weight ? p.dweight_partials : p.dbias_partials;
      if (!waited) Prefetch(partials + column), Prefetch(gradient);
      // At first without partial rows, which brings the instructions.
      const double total = sums.Total(partials, waited ? p.row_blocks * p.block_partials : 0,
                                      p.hidden_size, first_column, sync);
      if (waited && sums.has_total() && column < p.hidden_size) {
        if (p.weight_is_f32) {
          static_cast<float*>(gradient)[column] = static_cast<float>(total);
        } else {
          static_cast<StorageOf<X>*>(gradient)[column] =
              Element<X>::Narrow(static_cast<float>(total));
        }
      }
    }
    if (waited) {
      slice += step;
    } else {
      cooperative_groups::this_grid().barrier_wait(std::move(arrival));
      waited = true;
    }
  } while (slice < all_slices);
}

}  // namespace norm_device
