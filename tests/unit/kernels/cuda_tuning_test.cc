// Launch configurations are pure functions of hidden size, dtype and device. No device needed.
#include <gtest/gtest.h>

#include "row_norm/row_norm_block_device.h"
#include "row_norm/row_norm_ring_tuning.h"
#include "row_norm/row_norm_strip_device.h"
#include "row_norm/row_norm_tuning.h"

namespace norm::internal {
namespace {

using norm_device::RowMethod;

constexpr DeviceTraits kDevice = {132, 90, 227 << 10, 50 << 20};
constexpr DeviceTraits kWithoutClusters = {84, 86, 99 << 10, 6 << 20};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
constexpr int64_t kHiddenSizes[] = {
    1,    3,    31,   32,   33,   255,  256,   257,   1000,  1023,  1024,   4093,   4096,   4097,
    5000, 8191, 8192, 8193, 8200, 9000, 12289, 16384, 16392, 65536, 131072, 200003, 1 << 20};

/// Elements of a row that the plan's threads hold in registers.
int64_t HeldElements(const RowForwardPlan& plan, DType dtype, int64_t hidden_size) {
  if (plan.method == RowMethod::kStreaming) return INT64_MAX;
  if (plan.method == RowMethod::kStrips) {
    return norm_device::kStripShapes[norm_device::StripShapeOf(hidden_size, 0)].MaxHidden();
  }
  if (UsesRing(plan)) {
    const int threads = plan.threads - norm_device::kRingFeederThreads;
    return int64_t{threads} * plan.cluster_blocks * RowRingGranules(plan).of_row * 16 /
           static_cast<int64_t>(DTypeSize(dtype));
  }
  const int64_t threads = int64_t{plan.threads} * plan.cluster_blocks / plan.rows_per_block;
  const int extra = !plan.wide && norm_device::HasExtraElement(plan.method) ? 1 : 0;
  return threads * norm_device::HeldRowElements(plan.method, static_cast<int>(DTypeSize(dtype)),
                                                plan.wide) +
         extra;
}

TEST(RowNormTuningTest, EveryRowFitsItsThreads) {
  for (const DeviceTraits& device : {kDevice, kWithoutClusters}) {
    for (DType dtype : kDTypes) {
      for (int64_t hidden_size : kHiddenSizes) {
        const RowForwardPlan plan = PlanRowForward(hidden_size, dtype, device);
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << hidden_size);
        EXPECT_GE(HeldElements(plan, dtype, hidden_size), hidden_size);
        EXPECT_EQ(plan.threads % 32, 0);
        if (plan.method != RowMethod::kStrips) {
          EXPECT_LE(plan.threads, norm_device::kMaxBlockRowThreads);
        }
        EXPECT_EQ(plan.wide, hidden_size * DTypeSize(dtype) % 16 == 0);
        EXPECT_TRUE(plan.cluster_blocks == 1 || device.HasClusters());
        EXPECT_LE(plan.cluster_blocks, UsesRing(plan) ? 16 : 8);
      }
    }
  }
}

TEST(RowNormTuningTest, ASizeOneAboveAPowerOfTwoTakesNoMoreThreads) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t hidden_size : {256, 4096, 8192}) {
      const RowForwardPlan odd = PlanRowForward(hidden_size + 1, dtype, kDevice);
      if (odd.method == RowMethod::kStrips) continue;
      EXPECT_EQ(HeldElements(odd, dtype, hidden_size + 1), hidden_size + 1)
          << DTypeName(dtype) << hidden_size;
    }
  }
}

TEST(RowNormTuningTest, BlocksHaveNoMoreWarpsThanTheRowFills) {
  for (int64_t hidden_size : {4097, 4100, 6144, 8193, 12288}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const RowForwardPlan plan = PlanRowForward(hidden_size, dtype, kDevice);
      if (plan.cluster_blocks > 1 || plan.method == RowMethod::kStreaming ||
          plan.method == RowMethod::kStrips) {
        continue;
      }
      const int64_t of_warp = HeldElements(plan, dtype, hidden_size) / (plan.threads / 32);
      EXPECT_LT(HeldElements(plan, dtype, hidden_size) - of_warp, hidden_size)
          << DTypeName(dtype) << " " << hidden_size;
    }
  }
}

TEST(RowNormTuningTest, MethodsChangeAtTheDocumentedSizes) {
  const auto method = [](int64_t hidden_size, DType dtype) {
    return PlanRowForward(hidden_size, dtype, kDevice).method;
  };
  EXPECT_EQ(method(64, DType::kF32), RowMethod::kLanes4);
  EXPECT_EQ(method(128, DType::kF32), RowMethod::kLanes8);
  EXPECT_EQ(method(256, DType::kF32), RowMethod::kLanes16);
  EXPECT_EQ(method(257, DType::kF32), RowMethod::kLanes16);
  EXPECT_EQ(method(512, DType::kF32), RowMethod::kWarp);
  EXPECT_EQ(method(1023, DType::kF32), RowMethod::kBlock);
  EXPECT_EQ(method(1024, DType::kF32), RowMethod::kBlock);
  EXPECT_EQ(method(4096, DType::kF32), RowMethod::kBlock);
  EXPECT_EQ(method(6144, DType::kF32), RowMethod::kBlock);
  EXPECT_EQ(method(8192, DType::kF32), RowMethod::kBlockLong);
  EXPECT_EQ(method(4097, DType::kF32), RowMethod::kBlock);
  EXPECT_EQ(method(128, DType::kBF16), RowMethod::kLanes4);
  EXPECT_EQ(method(256, DType::kBF16), RowMethod::kLanes8);
  EXPECT_EQ(method(31, DType::kBF16), RowMethod::kLanes4);
  EXPECT_EQ(method(33, DType::kBF16), RowMethod::kStrips);
  EXPECT_EQ(method(257, DType::kBF16), RowMethod::kStrips);
  EXPECT_EQ(method(1024, DType::kBF16), RowMethod::kWarp);
  EXPECT_EQ(method(1023, DType::kBF16), RowMethod::kStrips);
  EXPECT_EQ(method(4385, DType::kF16), RowMethod::kStrips);
  EXPECT_EQ(method(4386, DType::kF16), RowMethod::kBlock);
  EXPECT_EQ(method(8192, DType::kBF16), RowMethod::kBlock);
  EXPECT_EQ(method(12288, DType::kBF16), RowMethod::kBlockLong);
  EXPECT_EQ(method(16384, DType::kF32), RowMethod::kBlockLong);
  EXPECT_EQ(method(16388, DType::kF32), RowMethod::kRing);
  EXPECT_EQ(method(16389, DType::kF32), RowMethod::kCluster);
  EXPECT_EQ(method(65536, DType::kF32), RowMethod::kRing);
  EXPECT_EQ(method(65536, DType::kBF16), RowMethod::kRing);
  EXPECT_EQ(method(262144, DType::kBF16), RowMethod::kLongRing);
  EXPECT_EQ(method(262144, DType::kF32), RowMethod::kLongRing);
  EXPECT_EQ(method(16384, DType::kF64), RowMethod::kCluster);
  EXPECT_EQ(method(1 << 20, DType::kF32), RowMethod::kStreaming);
  EXPECT_EQ(PlanRowForward(16388, DType::kF32, kWithoutClusters).method, RowMethod::kStreaming);
}

TEST(RowNormTuningTest, SmallLaunchesOverlapTheOneBefore) {
  const RowForwardPlan plan = PlanRowForward(4096, DType::kF32, kDevice);
  EXPECT_TRUE(RowForwardLaunch(plan, 32).overlaps_previous);
  EXPECT_FALSE(RowForwardLaunch(plan, 65536).overlaps_previous);
  const RowForwardPlan without = PlanRowForward(4096, DType::kF32, kWithoutClusters);
  EXPECT_FALSE(RowForwardLaunch(without, 32).overlaps_previous);
}

TEST(RowNormTuningTest, FewRowsHaveMultiprocessorsOfTheirOwn) {
  for (DType dtype : kDTypes) {
    for (int64_t hidden_size : kHiddenSizes) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << hidden_size);
      const RowForwardPlan plan = PlanRowForward(hidden_size, dtype, kDevice);
      const int spread =
          norm_device::SpreadRowBlocks(plan.method, static_cast<int>(DTypeSize(dtype)));
      const auto blocks = [&](int64_t rows, bool in_place = false) {
        return FewRowsBlocks(plan, rows, in_place, dtype, kDevice);
      };
      if (spread == 0 || !plan.wide) {
        EXPECT_EQ(blocks(1), 0);
        continue;
      }
      EXPECT_EQ(plan.cluster_blocks, 1);
      EXPECT_EQ(plan.rows_per_block, 1);
      EXPECT_GE(int64_t{plan.threads} * spread * 16,
                hidden_size * static_cast<int64_t>(DTypeSize(dtype)));
      EXPECT_EQ(blocks(1), spread);
      EXPECT_EQ(blocks(1, /*in_place=*/true), 1);
      EXPECT_EQ(blocks(kDevice.sm_count), 1);
      EXPECT_EQ(blocks(kDevice.sm_count + 1), 0);
      const LaunchConfig launch = FewRowsLaunch(plan, 3, spread);
      EXPECT_EQ(launch.blocks_x, 3 * spread);
      EXPECT_EQ(launch.threads_x, plan.threads);
    }
  }
}

TEST(RowNormTuningTest, PlainRowsHaveEnoughBlocks) {
  for (DType dtype : kDTypes) {
    for (DType weight_dtype : {dtype, DType::kF32}) {
      for (int64_t hidden_size : {8, 64, 128, 256, 1024, 2048, 4096, 8192}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << hidden_size);
        const RowForwardPlan plan = PlanRowForward(hidden_size, dtype, kDevice);
        for (bool rms : {true, false}) {
          const int together = PlainRowsTogether(plan, rms, dtype, weight_dtype);
          EXPECT_TRUE(together > 0 || !rms);
          if (together == 0) continue;
          const int rows_of_block = plan.rows_per_block * together;
          for (int64_t rows : {1, 2, 7, 64, 65, 65536, 131071}) {
            const LaunchConfig launch = PlainRowsLaunch(plan, rows, together);
            EXPECT_GE(launch.blocks_x * rows_of_block, rows);
            EXPECT_LT((launch.blocks_x - 1) * rows_of_block, rows);
            EXPECT_EQ(launch.threads_x, plan.threads);
          }
        }
      }
    }
  }
}

TEST(RowNormTuningTest, LayerNormRowsOfABlockHavePlainKernelsWhereTheyPay) {
  const auto together = [](int64_t hidden_size, DType dtype, DType weight_dtype) {
    const RowForwardPlan plan = PlanRowForward(hidden_size, dtype, kDevice);
    return PlainRowsTogether(plan, /*rms=*/false, dtype, weight_dtype);
  };
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int64_t hidden_size : {2048, 4096, 8192, 8200, 12288}) {
      EXPECT_EQ(together(hidden_size, dtype, dtype), 1) << hidden_size;
    }
    EXPECT_EQ(together(12296, dtype, dtype), 2);
    EXPECT_EQ(together(16384, dtype, dtype), 2);
    EXPECT_EQ(together(16392, dtype, dtype), 0);
    for (int64_t hidden_size : {2048, 4096, 8192}) {
      EXPECT_EQ(together(hidden_size, dtype, DType::kF32), 2) << hidden_size;
    }
    EXPECT_EQ(together(12288, dtype, DType::kF32), 0);
  }
  const auto of_f32 = [&](int64_t hidden_size) {
    return together(hidden_size, DType::kF32, DType::kF32);
  };
  EXPECT_EQ(of_f32(1024), 0);
  EXPECT_EQ(of_f32(2048), 2);
  EXPECT_EQ(of_f32(4096), 2);
  EXPECT_EQ(of_f32(5120), 2);
  EXPECT_EQ(of_f32(6144), 0);
  EXPECT_EQ(of_f32(8192), 0);
  EXPECT_EQ(of_f32(12288), 1);
  EXPECT_EQ(of_f32(16384), 0);
  EXPECT_EQ(together(4096, DType::kF64, DType::kF64), 0);
}

TEST(RowNormTuningTest, PlainRowsOfABlockHaveRegistersForTheirThreads) {
  constexpr int kRegistersOfAMultiprocessor = 65536;
  for (RowMethod method : {RowMethod::kBlock, RowMethod::kBlockLong}) {
    for (int bytes : {2, 4}) {
      for (int weight_bytes : {bytes, 4}) {
        for (int threads = 32; threads <= norm_device::kMaxBlockRowThreads; threads += 32) {
          const norm_device::BlockRows rows =
              norm_device::BlockRowsOf(method, bytes, weight_bytes, threads);
          if (rows.rows == 0 || threads > rows.threads) continue;
          // The rows themselves, and something to work with.
          const int held = norm_device::HeldRowElements(method, bytes, true) * bytes / 4;
          EXPECT_LE(rows.threads * rows.blocks * (rows.rows * held + 24),
                    kRegistersOfAMultiprocessor);
        }
      }
    }
  }
}

TEST(RowNormTuningTest, RingsHoldTheRowAndFitTheDevice) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int64_t elements = 16 / static_cast<int64_t>(DTypeSize(dtype));
    for (int64_t granules = 4097; granules < 70000; granules += granules < 5000 ? 1 : 97) {
      const RowForwardPlan plan = PlanRowForward(granules * elements, dtype, kDevice);
      if (!UsesRing(plan)) continue;
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << granules);
      const norm_device::RingGranules of_thread = RowRingGranules(plan);
      const norm_device::RingShape shape = RowRingShape(plan, granules * elements, dtype);
      EXPECT_EQ(shape.LaunchThreads(), plan.threads);
      EXPECT_LE(shape.threads, of_thread.max_threads);
      // Only the last granule of a thread may be missing.
      for (int rank = 0; rank < shape.blocks; ++rank) {
        const int of_block = shape.FirstGranule(rank + 1) - shape.FirstGranule(rank);
        EXPECT_LE(of_block, shape.threads * of_thread.of_row);
        EXPECT_GE(of_block, shape.threads * (of_thread.of_row - 1));
      }
      EXPECT_EQ(shape.FirstGranule(shape.blocks), granules);
      EXPECT_LE(plan.shared_bytes, kDevice.max_shared_bytes);
      EXPECT_LE(plan.max_clusters * plan.cluster_blocks, kDevice.sm_count);
      const int slots = shape.Slots(static_cast<int>(plan.shared_bytes));
      const int chunks = of_thread.of_row / of_thread.of_slot;
      for (bool has_residual : {false, true}) {
        const norm_device::RingSlots shared_out(of_thread, slots, has_residual);
        EXPECT_GE(shared_out.x, chunks + 1 + shared_out.residual);
        EXPECT_EQ(shared_out.residual > 0, has_residual);
        EXPECT_EQ(shared_out.x + shared_out.residual, slots);
      }
    }
  }
}

TEST(RowNormTuningTest, ShortPartsOfRingRowsAreTakenByTurns) {
  using norm_device::RowKind;
  const auto claims = [](RowKind kind, int64_t hidden_size, DType dtype) {
    return RowRingClaims(PlanRowForward(hidden_size, dtype, kDevice), kind, hidden_size, dtype);
  };
  for (RowKind kind : {RowKind::kRms, RowKind::kLayer}) {
    EXPECT_FALSE(claims(kind, 40960, DType::kBF16));  // 20 KiB for each block
    EXPECT_FALSE(claims(kind, 40960, DType::kF32));
    EXPECT_TRUE(claims(kind, 65536, DType::kBF16));  // 32 KiB
    EXPECT_TRUE(claims(kind, 131072, DType::kF32));
  }
  EXPECT_TRUE(claims(RowKind::kRms, 49152, DType::kBF16));  // 24 KiB
  EXPECT_FALSE(claims(RowKind::kLayer, 49152, DType::kBF16));
  EXPECT_TRUE(claims(RowKind::kRms, 65536, DType::kF32));  // eight blocks
  EXPECT_FALSE(claims(RowKind::kLayer, 65536, DType::kF32));
}

TEST(RowNormTuningTest, RingsAreForTheTypeOfXOnDevicesWithClusters) {
  EXPECT_TRUE(UsesRing(PlanRowForward(65536, DType::kBF16, kDevice)));
  EXPECT_FALSE(UsesRing(PlanRowForward(65536, DType::kBF16, kDevice, /*quantizes=*/true)));
  EXPECT_FALSE(UsesRing(PlanRowForward(65536, DType::kBF16, kWithoutClusters)));
}

TEST(RowNormTuningTest, StripsHoldTheRowAndFitTheDevice) {
  for (const DeviceTraits& device : {kDevice, kWithoutClusters}) {
    for (int64_t hidden_size = norm_device::kMinStripHidden;
         hidden_size <= norm_device::kMaxStripHidden; ++hidden_size) {
      if (hidden_size % 8 == 0) continue;
      SCOPED_TRACE(hidden_size);
      const RowForwardPlan plan = PlanRowForward(hidden_size, DType::kBF16, device);
      ASSERT_EQ(plan.method, RowMethod::kStrips);
      EXPECT_EQ(plan, PlanRowForward(hidden_size, DType::kF16, device));
      const int index = norm_device::StripShapeOf(hidden_size, 0);
      const norm_device::StripShape& shape = norm_device::kStripShapes[index];
      // Somebody has a whole strip.
      EXPECT_GE(hidden_size, shape.Elements());
      EXPECT_LE(hidden_size, shape.MaxHidden());
      EXPECT_EQ(plan.threads % shape.GroupThreads(), 0);
      EXPECT_LE(plan.threads, shape.forward_threads);
      const int groups = plan.threads / shape.GroupThreads();
      const auto size = static_cast<int>(hidden_size);
      for (bool has_residual : {false, true}) {
        const int rows = norm_device::StripForwardTileRows(shape, size, has_residual);
        EXPECT_LE(rows, 32);
        EXPECT_GE(rows * 2 * hidden_size, 32);
        EXPECT_EQ(rows % (shape.warps > 1 ? 1 : 32 / shape.lanes), 0);
        const int64_t bytes = has_residual ? plan.residual_shared_bytes : plan.shared_bytes;
        EXPECT_LE(bytes, device.max_shared_bytes);
        const int64_t stage =
            groups * (has_residual ? 2 : 1) * norm_device::TilePlaceBytes(rows, size);
        EXPECT_GE(bytes - norm_device::StripAffineBytes(shape, norm_device::RowKind::kLayer),
                  (shape.warps > 1 && !has_residual ? 3 : 2) * stage);
      }
    }
  }
}

TEST(RowNormTuningTest, QuantizedRowsAreNoStrips) {
  EXPECT_NE(PlanRowForward(257, DType::kBF16, kDevice, /*quantizes=*/true).method,
            RowMethod::kStrips);
}

TEST(RowNormTuningTest, RowsDecideOnlyHowManyBlocksAreLaunched) {
  for (int64_t hidden_size : kHiddenSizes) {
    const RowForwardPlan plan = PlanRowForward(hidden_size, DType::kF32, kDevice);
    EXPECT_EQ(plan, PlanRowForward(hidden_size, DType::kF32, kDevice));
    const LaunchConfig one = RowForwardLaunch(plan, 1);
    const LaunchConfig many = RowForwardLaunch(plan, int64_t{1} << 40);
    EXPECT_EQ(one.blocks_x, plan.cluster_blocks);
    EXPECT_LE(many.blocks_x, kMaxBlocksX);
    EXPECT_EQ(many.blocks_x % plan.cluster_blocks, 0);
    EXPECT_EQ(one.threads_x, many.threads_x);
    EXPECT_EQ(one.threads_y, many.threads_y);
    EXPECT_EQ(one.cluster_blocks, many.cluster_blocks);
  }
}

}  // namespace
}  // namespace norm::internal
