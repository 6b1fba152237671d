#include "row_norm/row_norm_backward_tuning.h"

#include <algorithm>

namespace norm::internal {
namespace {

using norm_device::kBackwardMaxThreads;
using norm_device::kBackwardMediumElements;
using norm_device::kBackwardNarrowElements;
using norm_device::RowBackwardMethod;

constexpr int kWarpThreads = 32;
constexpr int kMinBlockRowThreads = 64;
constexpr int kThreadsPerSm = 2048;
constexpr int kWaves = 4;                     // blocks in the grid per block that can be resident
constexpr int kPersistentThreadsPerSm = 512;  // about 120 registers a thread leave room for these

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int WideElements(DType dtype) { return 16 / static_cast<int>(DTypeSize(dtype)); }

int64_t Capacity(int elements_per_thread) {
  return static_cast<int64_t>(kBackwardMaxThreads) * elements_per_thread;
}

/// The smallest power of two of threads that holds the row.
int BlockThreads(int64_t hidden_size, int elements_per_thread) {
  int threads = kMinBlockRowThreads;
  while (static_cast<int64_t>(threads) * elements_per_thread < hidden_size) threads *= 2;
  return threads;
}

void UseWarpPerRow(RowBackwardPlan& plan, RowBackwardMethod method) {
  plan.method = method;
  plan.threads = norm_device::kBackwardWarpRowThreads;
  plan.rows_per_block = plan.threads / kWarpThreads;
}

void UseBlockPerRow(RowBackwardPlan& plan, RowBackwardMethod method, int threads) {
  plan.method = method;
  plan.threads = threads;
  plan.rows_per_block = 1;
}

}  // namespace

RowBackwardPlan PlanRowBackward(int64_t hidden_size, DType dtype, DeviceTraits device) {
  RowBackwardPlan plan;
  plan.wide = hidden_size % WideElements(dtype) == 0;
  const bool f64 = dtype == DType::kF64;
  const int wide_elements = norm_device::BackwardWideElements(f64, plan.wide);
  if (hidden_size <= kWarpThreads * kBackwardNarrowElements) {
    UseWarpPerRow(plan, RowBackwardMethod::kWarpRegisters);
    plan.sums_columns = true;
  } else if (hidden_size <= Capacity(kBackwardNarrowElements)) {
    UseBlockPerRow(plan, RowBackwardMethod::kBlockNarrow,
                   BlockThreads(hidden_size, kBackwardNarrowElements));
    plan.sums_columns = true;
  } else if (hidden_size <= Capacity(kBackwardMediumElements) && plan.wide && !f64) {
    UseBlockPerRow(plan, RowBackwardMethod::kBlockMedium,
                   BlockThreads(hidden_size, kBackwardMediumElements));
    plan.sums_columns = true;
  } else if (hidden_size <= Capacity(wide_elements) && !f64) {
    UseBlockPerRow(plan, RowBackwardMethod::kBlockWide, BlockThreads(hidden_size, wide_elements));
  } else {
    UseBlockPerRow(plan, RowBackwardMethod::kBlockStreaming, kBackwardMaxThreads);
  }
  plan.max_blocks =
      static_cast<int64_t>(device.sm_count) *
      std::max(
          1, (plan.sums_columns ? kPersistentThreadsPerSm : kThreadsPerSm * kWaves) / plan.threads);
  return plan;
}

LaunchConfig RowBackwardLaunch(const RowBackwardPlan& plan, int64_t rows) {
  LaunchConfig launch;
  launch.blocks_x = std::min(plan.max_blocks, CeilDiv(rows, plan.rows_per_block));
  launch.threads_x = plan.threads;
  return launch;
}

ColumnPlan PlanColumns(int64_t rows, int64_t hidden_size, DType dtype, DeviceTraits device) {
  constexpr int64_t kMinRowsPerStrip = 64;
  constexpr int64_t kBlocksPerSm = 8;
  const int granule = hidden_size % WideElements(dtype) == 0 ? WideElements(dtype) : 1;
  ColumnPlan plan;
  plan.launch.threads_x = norm_device::kColumnThreadsX;
  plan.launch.threads_y = norm_device::kColumnThreadsY;
  plan.launch.blocks_x = CeilDiv(hidden_size, norm_device::kColumnThreadsX * granule);
  const int64_t wanted_strips =
      std::max<int64_t>(1, device.sm_count * kBlocksPerSm / plan.launch.blocks_x);
  const int64_t strips =
      std::clamp<int64_t>(CeilDiv(rows, kMinRowsPerStrip), 1, std::min(wanted_strips, kMaxBlocksY));
  plan.rows_per_strip = CeilDiv(rows, strips);
  plan.launch.blocks_y = CeilDiv(rows, plan.rows_per_strip);
  return plan;
}

}  // namespace norm::internal
