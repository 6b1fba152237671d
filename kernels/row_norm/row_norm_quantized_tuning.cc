#include "row_norm/row_norm_quantized_tuning.h"

#include <algorithm>

namespace norm::internal {

using norm_device::QuantizedRowMethod;

std::optional<QuantizedRowPlan> PlanQuantizedRow(int64_t hidden_size, DType dtype) {
  constexpr int64_t kAccessBytes = 16;
  constexpr int64_t kWarpThreads = 32;
  const auto element_bytes = static_cast<int64_t>(DTypeSize(dtype));
  if (element_bytes > 4 || hidden_size * element_bytes % kAccessBytes != 0) return std::nullopt;
  const int64_t lanes = (hidden_size - 1) / norm_device::kQuantizedRowElements + 1;
  QuantizedRowPlan plan;
  if (lanes <= kWarpThreads) {
    plan.method = lanes <= 8    ? QuantizedRowMethod::kLanes8
                  : lanes <= 16 ? QuantizedRowMethod::kLanes16
                                : QuantizedRowMethod::kWarp;
    plan.threads = norm_device::kQuantizedLaneThreads;
    plan.rows_per_block = plan.threads / (lanes <= 8 ? 8 : lanes <= 16 ? 16 : 32);
    return plan;
  }
  const int64_t threads = ((lanes - 1) / kWarpThreads + 1) * kWarpThreads;
  if (threads > norm_device::kMaxQuantizedBlockThreads) return std::nullopt;
  plan.threads = static_cast<int>(threads);
  return plan;
}

LaunchConfig QuantizedRowLaunch(const QuantizedRowPlan& plan, int64_t rows) {
  LaunchConfig launch;
  launch.blocks_x = std::min((rows - 1) / plan.rows_per_block + 1, kMaxBlocksX);
  launch.threads_x = plan.threads;
  return launch;
}

}  // namespace norm::internal
