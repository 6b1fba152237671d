// Which quantized rows have kernels of their own: a pure function, so that a row's bits can be
// reasoned about without a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "dispatch/launch_config.h"
#include "norm/kernels/dtype.h"
#include "row_norm/row_norm_quantized_device.h"

namespace norm::internal {

/// How rows of one kind, hidden size and dtype are divided over threads.
struct QuantizedRowPlan {
  norm_device::QuantizedRowMethod method = norm_device::QuantizedRowMethod::kBlock;
  int threads = 0;  // of a block
  int rows_per_block = 1;
  int64_t shared_bytes = 0;     // of a block, for the rows that are on their way
  int64_t resident_blocks = 1;  // of the device
  int rows_in_turn = 0;         // that a block takes one after the other; 0: its share of all
};

/// None for rows that are no whole number of 16-byte granules or too long for registers: those take
/// the kernels of row_norm_device.h.
std::optional<QuantizedRowPlan> PlanQuantizedRow(norm_device::RowKind kind, int64_t hidden_size,
                                                 DType dtype, DeviceTraits device);

/// Blocks for `rows` rows; they loop when there are more rows than a grid has blocks.
LaunchConfig QuantizedRowLaunch(const QuantizedRowPlan& plan, int64_t rows);

}  // namespace norm::internal
