// Which kernel takes a row, with how many threads: pure functions, so that a row's bits can be
// reasoned about without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/launch_config.h"
#include "norm/kernels/dtype.h"
#include "row_norm/row_norm_device.h"

namespace norm::internal {

/// How rows of one hidden size and dtype are reduced on one device. The number of rows is no input:
/// it decides how many blocks are launched, never what a block does with a row.
struct RowForwardPlan {
  norm_device::RowMethod method = norm_device::RowMethod::kBlock;
  bool wide = false;  // hidden_size is a multiple of the elements in 16 bytes
  int threads = 0;    // of a block
  int rows_per_block = 1;
  int cluster_blocks = 1;    // that share a row
  int64_t max_clusters = 0;  // rings, strips: those that loop over all rows; 0: one for each row
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  int64_t residual_shared_bytes = 0;  // strips: of a request with a residual
  bool overlaps_previous = false;     // of LaunchConfig

  friend bool operator==(const RowForwardPlan&, const RowForwardPlan&) = default;
};

/// `quantizes`: y is not in the type of x, which rings do not write.
RowForwardPlan PlanRowForward(int64_t hidden_size, DType dtype, DeviceTraits device,
                              bool quantizes = false);

/// Blocks for `rows` rows; they loop when there are more rows than a grid has blocks.
LaunchConfig RowForwardLaunch(const RowForwardPlan& plan, int64_t rows);

/// Rows that the same threads own in a launch of RowLaunchKind::kPlain; 0: there is no such kernel.
int PlainRowsTogether(const RowForwardPlan& plan, bool rms, DType dtype, DType weight_dtype);
LaunchConfig PlainRowsLaunch(const RowForwardPlan& plan, int64_t rows, int together);

/// Blocks for each row of a plain request where rows are so few that no multiprocessor needs to hold
/// two: 1 (RowLaunchKind::kFewRows), several (kSpreadRows), or 0 if they are not. Their threads hold
/// what the plan's hold.
int FewRowsBlocks(const RowForwardPlan& plan, int64_t rows, bool in_place, DType dtype,
                  DeviceTraits device);
LaunchConfig FewRowsLaunch(const RowForwardPlan& plan, int64_t rows, int blocks);

}  // namespace norm::internal
