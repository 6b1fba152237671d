// Backward launch configurations are pure functions of op, hidden size, dtypes and device. No
// device needed.
#include <gtest/gtest.h>

#include <vector>

#include "row_norm/row_norm_backward_tuning.h"
#include "row_norm/row_norm_strip_device.h"

namespace norm::internal {
namespace {

using norm_device::RowBackwardMethod;
using norm_device::RowKind;

constexpr DeviceTraits kHopper = {132, 90, 227 << 10, 50 << 20};
constexpr DeviceTraits kAmpere = {108, 80, 163 << 10, 40 << 20};
constexpr DeviceTraits kSmallAmpere = {84, 86, 99 << 10, 6 << 20};
constexpr DeviceTraits kTuring = {40, 75, 64 << 10, 4 << 20};
constexpr DeviceTraits kDevices[] = {kHopper, kAmpere, kSmallAmpere, kTuring};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr RowKind kKinds[] = {RowKind::kRms, RowKind::kLayer};

/// Every size to 1100, then about one in a hundred, with all sizes around powers of two.
std::vector<int64_t> HiddenSizes() {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 1100; ++size) sizes.push_back(size);
  for (int64_t size = 1101; size <= 300000; size += 97) sizes.push_back(size);
  for (int64_t power = 2048; power <= 262144; power *= 2) {
    for (int64_t off : {-8, -4, -1, 0, 1, 4, 8}) sizes.push_back(power + off);
  }
  sizes.push_back(int64_t{1} << 31);
  return sizes;
}

class RowBackwardTuningTest : public ::testing::TestWithParam<DeviceTraits> {
 protected:
  template <typename Check>
  void ForEachPlan(Check&& check) const {
    for (RowKind kind : kKinds) {
      for (DType dtype : kDTypes) {
        for (int ring_tensors : {2, 3}) {
          for (int64_t hidden_size : HiddenSizes()) {
            SCOPED_TRACE(testing::Message()
                         << (kind == RowKind::kRms ? "rms " : "layer ") << DTypeName(dtype) << " "
                         << hidden_size << ", " << ring_tensors << " tensors");
            check(PlanRowBackward(kind, hidden_size, dtype, ring_tensors, GetParam()), hidden_size,
                  dtype, kind, ring_tensors);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
};

/// Columns that the plan's threads hold.
int64_t HeldColumns(const RowBackwardPlan& plan, DType dtype) {
  const int64_t granule = plan.wide ? 16 / static_cast<int64_t>(DTypeSize(dtype)) : 1;
  switch (plan.method) {
    case RowBackwardMethod::kTiles:
      return plan.lanes * plan.granules * granule;
    case RowBackwardMethod::kGroups:
      return plan.group_warps * 32 * plan.granules * granule;
    case RowBackwardMethod::kBlock:
    case RowBackwardMethod::kCluster:
      return std::min<int64_t>(plan.columns, plan.threads * plan.granules * granule) *
             plan.cluster_blocks;
    case RowBackwardMethod::kLong:
      return plan.tensor_bytes / 16 * norm_device::kLongTiles[plan.granules].granules * granule *
             plan.cluster_blocks;
    case RowBackwardMethod::kStrips:
      return norm_device::kStripShapes[plan.granules].MaxHidden();
    case RowBackwardMethod::kCarefulWarp:
      return 32 * norm_device::kCarefulElements;
    case RowBackwardMethod::kCarefulBlock:
      return int64_t{plan.threads} * norm_device::kCarefulElements;
    case RowBackwardMethod::kStreaming:
      break;
  }
  return INT64_MAX;
}

void CheckGroups(const RowBackwardPlan& plan, int64_t hidden_size, DType dtype, RowKind kind) {
  EXPECT_EQ(plan.threads, plan.groups * plan.group_warps * 32);
  EXPECT_LE(plan.groups * plan.group_warps, norm_device::kMaxGroupWarps);
  EXPECT_LE(plan.groups * plan.stages, norm_device::kMaxGroupStages);
  // Two stages at least: one is at work until the next row's sums have met.
  EXPECT_GE(plan.stages, 2);
  EXPECT_EQ(plan.rows_per_block, plan.groups);
  // What lies past a row in its stage reads as zero: it must be there, for every thread.
  const int64_t covered = HeldColumns(plan, dtype);
  EXPECT_GE(plan.tensor_bytes, covered * static_cast<int64_t>(DTypeSize(dtype)));
  EXPECT_GE(covered, hidden_size);
  const int64_t gradients = kind == RowKind::kLayer ? 2 : 1;
  if (plan.column_totals_offset < 0) {
    EXPECT_EQ(plan.direct_rows, 0);
    EXPECT_LE(plan.max_partial_stages, 64);
  } else {
    EXPECT_EQ(plan.column_totals_offset % 16, 0);
    EXPECT_GE(plan.shared_bytes - plan.column_totals_offset, covered * 4 * gradients);
  }
}

/// The parts of shared memory do not overlap; every thread has all its granules but perhaps the
/// last one; the ring holds a unit of rows and what is under way.
void CheckLongPlan(const RowBackwardPlan& plan, int64_t hidden_size, DType dtype, RowKind kind,
                   int ring_tensors) {
  const norm_device::LongTile tile = norm_device::kLongTiles[plan.granules];
  EXPECT_TRUE(norm_device::LongTileServes(plan.granules, kind, static_cast<int>(DTypeSize(dtype))));
  const int64_t threads = plan.tensor_bytes / 16;
  const int64_t row_granules = hidden_size * static_cast<int64_t>(DTypeSize(dtype)) / 16;
  EXPECT_LE(threads, plan.threads - 32);
  EXPECT_GT(threads, plan.threads - 64);
  EXPECT_LE(threads * (tile.granules - 1), row_granules / plan.cluster_blocks);
  EXPECT_LE(threads, tile.max_threads);
  EXPECT_GE(plan.stages, norm_device::LeastLongUnits(tile));
  EXPECT_EQ(plan.rows_per_block, tile.rows);
  const int slots = plan.stages * tile.granules * tile.rows;
  EXPECT_LE(slots, norm_device::kMaxLongSlots);
  const int warps = (plan.threads / 32 - 1) * plan.cluster_blocks;
  EXPECT_GE(plan.exchange_offset, slots * ring_tensors * plan.tensor_bytes);
  EXPECT_GE(plan.careful_offset - plan.exchange_offset,
            norm_device::LongExchangeBytes(kind, tile.rows, warps));
  EXPECT_EQ(plan.exchange_offset % 16, 0);
  EXPECT_EQ(plan.careful_offset % 16, 0);
  EXPECT_GE(plan.weights_offset - plan.careful_offset, 2 * norm_device::CarefulDoubles(warps) * 8);
  EXPECT_EQ(plan.weights_offset % 16, 0);
  const bool keeps_weights =
      norm_device::LongWeightsAreShared(kind, tile.granules, static_cast<int>(DTypeSize(dtype)));
  EXPECT_GE(plan.shared_bytes - plan.weights_offset,
            keeps_weights ? 2 * tile.granules * plan.tensor_bytes : 0);
}

void CheckStrips(const RowBackwardPlan& plan, RowKind kind) {
  const norm_device::StripShape& shape = norm_device::kStripShapes[plan.granules];
  const norm_device::StripBackwardBytes bytes(shape, kind);
  EXPECT_GE(plan.columns, shape.Elements());
  EXPECT_EQ(plan.threads % shape.GroupThreads(), 0);
  EXPECT_LE(plan.threads, norm_device::kStripBackwardThreads);
  const int groups = plan.threads / shape.GroupThreads();
  EXPECT_GE(plan.stages, shape.warps > 1 ? 3 : 2);
  EXPECT_EQ(plan.tensor_bytes % norm_device::kTileLineBytes, 0);
  const int64_t ring = std::max<int64_t>(2 * plan.stages * plan.tensor_bytes, bytes.sums);
  EXPECT_EQ(plan.strip_groups, groups);
  const bool global_totals = norm_device::HasGlobalStripTotals(shape);
  EXPECT_EQ(plan.strip_total_bytes, global_totals ? bytes.totals : 0);
  EXPECT_GE(plan.shared_bytes, (global_totals ? 0 : bytes.totals) + groups * (bytes.group + ring));
  EXPECT_LE(plan.tile_rows, 32);
}

TEST_P(RowBackwardTuningTest, EveryRowFitsItsThreads) {
  ForEachPlan([&](const RowBackwardPlan& plan, int64_t hidden_size, DType dtype, RowKind, int) {
    EXPECT_GE(HeldColumns(plan, dtype), hidden_size);
    EXPECT_EQ(plan.threads % 32, 0);
    EXPECT_GT(plan.threads, 0);
    EXPECT_LE(plan.threads, 512);
    EXPECT_GE(plan.max_row_blocks, 1);
    EXPECT_EQ(plan.wide, hidden_size * static_cast<int64_t>(DTypeSize(dtype)) % 16 == 0);
    EXPECT_EQ(plan.UsesRing(), plan.method <= RowBackwardMethod::kStrips);
  });
}

TEST_P(RowBackwardTuningTest, RingsKeepTheDevicesLimits) {
  ForEachPlan([&](const RowBackwardPlan& plan, int64_t hidden_size, DType dtype, RowKind kind,
                  int ring_tensors) {
    if (!plan.UsesRing()) return;
    EXPECT_LE(plan.shared_bytes, GetParam().max_shared_bytes);
    EXPECT_EQ(plan.tensor_bytes % 16, 0);
    if (plan.method == RowBackwardMethod::kLong) {
      CheckLongPlan(plan, hidden_size, dtype, kind, ring_tensors);
      return;
    }
    EXPECT_GE(plan.stages, 1);
    EXPECT_LE(plan.stages, 8);
    const auto element_bytes = static_cast<int64_t>(DTypeSize(dtype));
    EXPECT_GE(plan.tensor_bytes, std::max(1, plan.tile_rows) * plan.columns * element_bytes + 15);
    EXPECT_LE(plan.column_totals_offset, plan.shared_bytes);
    if (plan.method == RowBackwardMethod::kGroups) {
      CheckGroups(plan, hidden_size, dtype, kind);
      return;
    }
    if (plan.method == RowBackwardMethod::kStrips) {
      CheckStrips(plan, kind);
      return;
    }
    if (plan.method == RowBackwardMethod::kTiles) {
      EXPECT_EQ(plan.tile_rows % (2 * (32 / plan.lanes)), 0);
      EXPECT_LE(plan.tile_rows, 32);
      return;
    }
    EXPECT_EQ(plan.column_totals_offset % 16, 0);
    EXPECT_EQ(plan.careful_offset % 8, 0);
    const int warps = plan.threads / 32;
    EXPECT_GE(plan.careful_offset - plan.exchange_offset,
              norm_device::ExchangeFloats(kind, warps * plan.cluster_blocks) * 4);
    EXPECT_GE(plan.shared_bytes - plan.careful_offset, norm_device::CarefulDoubles(warps) * 8);
    EXPECT_EQ(plan.cluster_blocks > 1, plan.method == RowBackwardMethod::kCluster);
    EXPECT_LT(int64_t{plan.columns} * (plan.cluster_blocks - 1), hidden_size + plan.columns);
    if (plan.method == RowBackwardMethod::kCluster) {
      EXPECT_TRUE(GetParam().HasClusters());
      EXPECT_LE(plan.cluster_blocks, 16);
    }
    EXPECT_LE(plan.pipelined, GetParam().HasClusters());
  });
}

TEST_P(RowBackwardTuningTest, RowsDecideOnlyHowManyBlocksAreLaunched) {
  ForEachPlan([&](const RowBackwardPlan& plan, int64_t, DType, RowKind, int) {
    for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{65}, int64_t{70000}, int64_t{1} << 33}) {
      const RowBackwardLaunch launch = LaunchRowBackward(plan, rows, true);
      EXPECT_EQ(launch.config.blocks_x, launch.row_blocks * plan.cluster_blocks);
      EXPECT_LE(launch.row_blocks, plan.max_row_blocks);
      if (launch.direct) {
        EXPECT_EQ(launch.row_blocks, 1);
        EXPECT_EQ(launch.block_partials, 1);
      }
      EXPECT_LE(launch.config.blocks_x, kMaxBlocksX);
      EXPECT_EQ(launch.config.threads_x, plan.threads);
      EXPECT_EQ(launch.config.dynamic_shared_bytes, plan.shared_bytes);
      if (!plan.UsesRing()) continue;
      EXPECT_LE(launch.partial_stages, plan.max_partial_stages);
      EXPECT_GE(
          launch.row_blocks * launch.block_partials * launch.partial_stages * plan.rows_per_block,
          rows);
    }
  });
}

TEST_P(RowBackwardTuningTest, FewRowsNeedNoPartialRowsWhereDweightIsWanted) {
  const auto launch = [&](int64_t rows, bool sums_columns) {
    const RowBackwardPlan plan = PlanRowBackward(RowKind::kRms, 2048, DType::kBF16, 2, GetParam());
    return LaunchRowBackward(plan, rows, sums_columns);
  };
  EXPECT_TRUE(launch(1, true).direct);
  EXPECT_EQ(launch(1, true).config.blocks_x, 1);
  EXPECT_FALSE(launch(1, false).direct);
  EXPECT_FALSE(launch(8192, true).direct);
  EXPECT_EQ(launch(8192, true).config.blocks_x, GetParam().sm_count);
}

TEST_P(RowBackwardTuningTest, LaunchesThatFinalizeInPlaceAreResidentAndHoldTheScratch) {
  ForEachPlan([&](const RowBackwardPlan& plan, int64_t hidden_size, DType, RowKind, int) {
    EXPECT_FALSE(LaunchRowBackward(plan, 70000, false).config.cooperative);
    EXPECT_EQ(LaunchRowBackward(plan, 70000, true).config.cooperative, plan.finalizes_in_place);
    EXPECT_FALSE(LaunchRowBackward(plan, 1, true).direct &&
                 LaunchRowBackward(plan, 1, true).config.cooperative);
    if (!plan.finalizes_in_place) return;
    EXPECT_TRUE(plan.method == RowBackwardMethod::kTiles ||
                plan.method == RowBackwardMethod::kGroups);
    EXPECT_LE(plan.max_row_blocks, GetParam().sm_count);
    // The threads and columns of a slice are those of the finalize kernel, which segments take.
    const norm_device::FinalizeShape shape = norm_device::FinalizeShapeOf(hidden_size, false);
    EXPECT_EQ(shape.columns, norm_device::kGridFinalizeShape.columns);
    EXPECT_EQ(shape.lanes, norm_device::kGridFinalizeShape.lanes);
    EXPECT_EQ(shape.threads, norm_device::kGridFinalizeThreads);
    EXPECT_GE(plan.threads, norm_device::kGridFinalizeThreads);
    EXPECT_GE(plan.shared_bytes, int64_t{plan.threads} * norm_device::kGridFinalizeDoubles * 8);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, RowBackwardTuningTest, ::testing::ValuesIn(kDevices),
                         [](const auto& named) {
                           return "sm_" + std::to_string(named.param.compute_capability);
                         });

TEST(RowBackwardMethodTest, ChangesAtTheDocumentedSizes) {
  const auto method = [](int64_t hidden_size, DType dtype, const DeviceTraits& device = kHopper) {
    return PlanRowBackward(RowKind::kLayer, hidden_size, dtype, 2, device).method;
  };
  EXPECT_EQ(method(256, DType::kF32), RowBackwardMethod::kTiles);
  EXPECT_EQ(method(512, DType::kF32), RowBackwardMethod::kGroups);
  EXPECT_EQ(method(513, DType::kF32), RowBackwardMethod::kBlock);
  EXPECT_EQ(method(516, DType::kF32), RowBackwardMethod::kGroups);
  EXPECT_EQ(method(4096, DType::kBF16), RowBackwardMethod::kGroups);
  EXPECT_EQ(method(8192, DType::kBF16), RowBackwardMethod::kGroups);
  EXPECT_EQ(method(8192, DType::kBF16, kAmpere), RowBackwardMethod::kGroups);
  EXPECT_EQ(method(8200, DType::kBF16), RowBackwardMethod::kLong);
  EXPECT_EQ(method(8201, DType::kBF16), RowBackwardMethod::kCluster);
  EXPECT_EQ(method(65536, DType::kF32), RowBackwardMethod::kLong);
  EXPECT_EQ(method(262144, DType::kBF16), RowBackwardMethod::kLong);
  EXPECT_EQ(method(511, DType::kBF16), RowBackwardMethod::kTiles);
  EXPECT_EQ(method(513, DType::kBF16), RowBackwardMethod::kStrips);
  EXPECT_EQ(method(4385, DType::kF16), RowBackwardMethod::kStrips);
  EXPECT_EQ(method(4386, DType::kF16), RowBackwardMethod::kBlock);
  EXPECT_EQ(method(262144, DType::kF32), RowBackwardMethod::kStreaming);
  EXPECT_EQ(method(65536, DType::kBF16, kAmpere), RowBackwardMethod::kStreaming);
  EXPECT_EQ(method(256, DType::kF64), RowBackwardMethod::kCarefulWarp);
  EXPECT_EQ(method(257, DType::kF64), RowBackwardMethod::kCarefulBlock);
  EXPECT_EQ(method(4097, DType::kF64), RowBackwardMethod::kStreaming);
}

TEST(RowBackwardStripsTest, OnlyManyRowsOfAGroupNeedTotals) {
  const RowBackwardPlan plan = PlanRowBackward(RowKind::kRms, 4097, DType::kBF16, 2, kHopper);
  ASSERT_EQ(plan.method, RowBackwardMethod::kStrips);
  const int64_t few = plan.max_row_blocks * plan.strip_groups * norm_device::kPlainSumRows;
  EXPECT_EQ(LaunchRowBackward(plan, few, true).strip_total_bytes, 0);
  EXPECT_EQ(LaunchRowBackward(plan, few + 1, true).strip_total_bytes,
            plan.max_row_blocks * plan.strip_total_bytes);
}

TEST(FinalizeTuningTest, EveryColumnHasAThread) {
  for (bool partials_are_f64 : {false, true}) {
    for (int64_t hidden_size : HiddenSizes()) {
      const norm_device::FinalizeShape shape =
          norm_device::FinalizeShapeOf(hidden_size, partials_are_f64);
      EXPECT_EQ(shape.threads % shape.lanes, 0);
      EXPECT_EQ(hidden_size % shape.columns, 0);
      // Threads of a column share its partial rows out evenly.
      EXPECT_EQ(shape.threads / shape.lanes % shape.columns, 0);
      EXPECT_LE(shape.threads / shape.block_columns(), 32);
    }
  }
}

TEST(ColumnTuningTest, StripsCoverEveryRow) {
  for (int64_t rows : {int64_t{1}, int64_t{63}, int64_t{65}, int64_t{70000}, int64_t{1} << 33}) {
    for (int64_t hidden_size : {int64_t{8193}, int64_t{65536}, int64_t{1} << 20}) {
      const ColumnPlan plan = PlanColumns(rows, hidden_size, DType::kF32, kHopper);
      EXPECT_GE(plan.launch.blocks_y * plan.rows_per_strip, rows);
      EXPECT_LT((plan.launch.blocks_y - 1) * plan.rows_per_strip, rows);
      EXPECT_LE(plan.launch.blocks_y, kMaxBlocksY);
    }
  }
}

}  // namespace
}  // namespace norm::internal
