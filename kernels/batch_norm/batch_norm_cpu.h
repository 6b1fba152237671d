// BatchNorm on host memory: how a tensor is split, and the vectorized passes over it. All
// arithmetic is in f64.
#pragma once

#include <cstdint>

#include "norm/kernels/batch_norm.h"

namespace norm::internal {

/// kMajor: a channel's values lie in `batch` contiguous segments of `spatial`. kMinor: neighbours
/// are other channels.
enum class ChannelOrder : uint8_t { kMajor, kMinor };

/// The split of a tensor into tasks. Depends on the shape only: the order of every addition follows
/// from it.
struct ChannelPlan {
  ChannelOrder order = ChannelOrder::kMajor;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t spatial = 1;  // 1 for kMinor, whose batch counts rows
  int64_t count = 0;    // values per channel: batch * spatial

  // Reductions: chunks of each channel's values, groups of channels.
  int64_t chunks = 0;
  int64_t values_per_chunk = 0;
  int64_t channels_per_task = 0;
  int64_t reduction_tasks = 0;

  // Elementwise passes: rows for kMinor; pieces of a segment for kMajor.
  int64_t pieces_per_segment = 1;
  int64_t values_per_piece = 1;
  int64_t items = 0;
  int64_t items_per_task = 0;
  int64_t item_tasks = 0;
};

ChannelPlan MakeChannelPlan(const BatchNormShape& shape);

/// Partial sums of one reduction, each [chunks, channels]. Moments: mean, mean_low, m2. Gradients:
/// sums of x - mean, of dy, and of dy * (x - mean).
struct ChannelPartials {
  double* first = nullptr;
  double* second = nullptr;
  double* third = nullptr;
};

/// What an elementwise pass knows of each channel, each [channels].
struct ChannelTable {
  double* mean = nullptr;
  double* mean_low = nullptr;  // mean + mean_low is the mean
  double* rstd = nullptr;
  double* weight = nullptr;
  double* bias = nullptr;      // forward
  double* mean_dy = nullptr;   // backward: dbias / count, 0 in inference
  double* mean_dyh = nullptr;  // backward: dweight / count, 0 in inference
};

// One task each, on the best instruction set of this machine.
void PartialMoments(const ChannelPlan& plan, DType dtype, const void* x,
                    const ChannelPartials& partials, int64_t task);
void PartialGradients(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                      const ChannelTable& table, const ChannelPartials& partials, int64_t task);
void NormalizeItems(const ChannelPlan& plan, DType dtype, const void* x, const ChannelTable& table,
                    void* y, int64_t task);
void DifferentiateItems(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                        const ChannelTable& table, void* dx, int64_t task);

}  // namespace norm::internal
