// Which backward kernel takes a row, with how many threads: pure functions, so that a row's bits
// can be reasoned about without a GPU.
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
  norm_device::RowBackwardMethod method = norm_device::RowBackwardMethod::kTiles;
  bool wide = false;  // hidden_size is a multiple of the elements in 16 bytes
  int threads = 0;    // of a block

  // Ring kernels.
  bool pipelined = false;            // kBlock
  int granules = 0;                  // of a thread; kStrips, kLong: the index of the shape
  int lanes = 0;                     // kTiles: that share a row
  int group_warps = 0;               // kGroups: that share a row
  int groups = 1;                    // kGroups: of a block
  int tile_rows = 0;                 // kTiles: of a stage
  int cluster_blocks = 1;            // kCluster: that share a row
  int columns = 0;                   // of a block
  int stages = 0;                    // kLong: units of rows in the ring
  int64_t tensor_bytes = 0;          // of one tensor in a stage
  int64_t column_totals_offset = 0;  // in shared memory; negative: kGroups without totals
  int64_t exchange_offset = 0;
  int64_t careful_offset = 0;
  int64_t weights_offset = 0;  // kLong
  int64_t shared_bytes = 0;
  /// Stages that one partial row may add up, so that a sum's rounding stays that of short sums.
  int64_t max_partial_stages = 0;

  int rows_per_block = 1;      // kTiles: of one stage of each warp; kGroups: of one of each group
  int64_t max_row_blocks = 1;  // blocks, or clusters
  int strip_groups = 1;        // kStrips: groups of a block that take rows in turn
  int64_t strip_total_bytes = 0;    // kStrips: of a block's sums in global memory
  bool finalizes_in_place = false;  // kGroups, kTiles: a launch alone adds its partial rows up
  int direct_rows = 0;              // kGroups: most rows of a request that need no partial rows

  bool UsesRing() const {
    return method == norm_device::RowBackwardMethod::kTiles ||
           method == norm_device::RowBackwardMethod::kGroups ||
           method == norm_device::RowBackwardMethod::kStrips ||
           method == norm_device::RowBackwardMethod::kBlock ||
           method == norm_device::RowBackwardMethod::kLong ||
           method == norm_device::RowBackwardMethod::kCluster;
  }

  friend bool operator==(const RowBackwardPlan&, const RowBackwardPlan&) = default;
};

/// `ring_tensors`: that a row brings, x, dy and perhaps dresidual_sum; decides how deep the ring
/// is.
RowBackwardPlan PlanRowBackward(norm_device::RowKind kind, int64_t hidden_size, DType dtype,
                                int ring_tensors, DeviceTraits device);

/// kLong: rows of 16-byte granules that are too long for the other ring kernels. False: none.
bool PlanLongBackward(norm_device::RowKind kind, int64_t hidden_size, DType dtype, int ring_tensors,
                      DeviceTraits device, RowBackwardPlan& plan);

/// What the rows of one request make of a plan.
struct RowBackwardLaunch {
  LaunchConfig config;
  int64_t row_blocks = 1;
  int64_t partial_stages = 0;     // ring kernels: stages that one partial row adds up
  int64_t strip_total_bytes = 0;  // kStrips: of all blocks' sums in global memory
  int64_t block_partials = 1;  // partial rows of a row block (kGroups without totals: of a group)
  /// kGroups: few rows, whose one block writes dweight and dbias itself.
  bool direct = false;
};

/// `rows` > 0. `sums_columns`: dweight or dbias is wanted.
RowBackwardLaunch LaunchRowBackward(const RowBackwardPlan& plan, int64_t rows, bool sums_columns);

/// The column kernel's grid: column blocks by strips of `rows_per_strip` rows.
struct ColumnPlan {
  LaunchConfig launch;
  int64_t rows_per_strip = 0;
};
ColumnPlan PlanColumns(int64_t rows, int64_t hidden_size, DType dtype, DeviceTraits device);

/// The statistics kernel: a block a row.
LaunchConfig LaunchRowStatistics(int64_t rows, int64_t hidden_size, DeviceTraits device);

}  // namespace norm::internal
