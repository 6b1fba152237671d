#include "row_norm/row_norm_tuning.h"

#include <algorithm>

namespace norm::internal {
namespace {

using norm_device::kMaxBlockRowThreads;
using norm_device::kNarrowRowElements;
using norm_device::RowMethod;

constexpr int kWarpThreads = 32;
constexpr int kMinBlockRowThreads = 64;
constexpr int kThreadsPerSm = 2048;
constexpr int kForwardWaves = 4;  // blocks in the grid per block that can be resident

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int WideElements(DType dtype) { return 16 / static_cast<int>(DTypeSize(dtype)); }

int64_t Capacity(int elements_per_thread) {
  return static_cast<int64_t>(kMaxBlockRowThreads) * elements_per_thread;
}

/// The smallest power of two of threads that holds the row.
int BlockThreads(int64_t hidden_size, int elements_per_thread) {
  int threads = kMinBlockRowThreads;
  while (static_cast<int64_t>(threads) * elements_per_thread < hidden_size) threads *= 2;
  return threads;
}

void UseWarpPerRow(RowNormPlan& plan, RowMethod method) {
  plan.method = method;
  plan.threads = norm_device::kWarpRowThreads;
  plan.rows_per_block = plan.threads / kWarpThreads;
}

void UseBlockPerRow(RowNormPlan& plan, RowMethod method, int threads) {
  plan.method = method;
  plan.threads = threads;
  plan.rows_per_block = 1;
}

}  // namespace

RowNormPlan PlanRowForward(int64_t hidden_size, DType dtype, DeviceTraits device) {
  RowNormPlan plan;
  plan.wide = hidden_size % WideElements(dtype) == 0;
  const int wide_elements = norm_device::WideRowElements(dtype == DType::kF64, plan.wide);
  // Two-byte elements: a narrow thread would wait for one load and reduce as often as others do for
  // four.
  const bool narrow_blocks = DTypeSize(dtype) > 2;
  if (hidden_size <= kWarpThreads * kNarrowRowElements) {
    UseWarpPerRow(plan, RowMethod::kWarpRegisters);
  } else if (hidden_size <= kWarpThreads * wide_elements) {
    UseWarpPerRow(plan, RowMethod::kWarpWide);
  } else if (narrow_blocks && hidden_size <= Capacity(kNarrowRowElements)) {
    UseBlockPerRow(plan, RowMethod::kBlockNarrow, BlockThreads(hidden_size, kNarrowRowElements));
  } else if (hidden_size <= Capacity(wide_elements)) {
    UseBlockPerRow(plan, RowMethod::kBlockWide, BlockThreads(hidden_size, wide_elements));
  } else {
    UseBlockPerRow(plan, RowMethod::kBlockStreaming, kMaxBlockRowThreads);
  }
  plan.max_blocks =
      static_cast<int64_t>(device.sm_count) * (kThreadsPerSm / plan.threads) * kForwardWaves;
  return plan;
}

LaunchConfig RowLaunch(const RowNormPlan& plan, int64_t rows) {
  LaunchConfig launch;
  launch.blocks_x = std::min(plan.max_blocks, CeilDiv(rows, plan.rows_per_block));
  launch.threads_x = plan.threads;
  return launch;
}

}  // namespace norm::internal
