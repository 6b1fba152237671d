// Which backward kernel takes a row, with how many threads: pure functions, so that a row's bits can
// be reasoned about without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/launch_config.h"
#include "norm/kernels/dtype.h"
#include "row_norm/row_norm_backward_device.h"

namespace norm::internal {

/// How rows of one hidden size and dtype are reduced on one device. The number of rows is no input:
/// it decides how many blocks are launched, never what a block does with a row.
struct RowBackwardPlan {
  norm_device::RowBackwardMethod method = norm_device::RowBackwardMethod::kWarpRegisters;
  bool wide = false;  // hidden_size is a multiple of the elements in 16 bytes
  int threads = 0;    // of a block
  int rows_per_block = 1;
  int64_t max_blocks = 1;
  bool sums_columns = false;  // this kernel leaves dweight and dbias partials itself

  friend bool operator==(const RowBackwardPlan&, const RowBackwardPlan&) = default;
};

RowBackwardPlan PlanRowBackward(int64_t hidden_size, DType dtype, DeviceTraits device);

/// Blocks for `rows` rows; they loop when there are more rows than blocks. One partial row of
/// dweight per block.
LaunchConfig RowBackwardLaunch(const RowBackwardPlan& plan, int64_t rows);

/// The column kernel's grid: column blocks by strips of `rows_per_strip` rows.
struct ColumnPlan {
  LaunchConfig launch;
  int64_t rows_per_strip = 0;
};
ColumnPlan PlanColumns(int64_t rows, int64_t hidden_size, DType dtype, DeviceTraits device);

}  // namespace norm::internal
