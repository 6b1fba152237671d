// BatchNorm against the oracle: every shape, dtype pair, layout and mode, forward and backward.
#include <gtest/gtest.h>

#include "tests/support/batch_norm_case.h"
#include "tests/support/shape_file.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

struct BatchSweepPoint {
  ChannelExtent extent;
  DTypePair dtypes;
};

bool IsLarge(const ChannelExtent& extent) {
  return extent.batch * extent.channels * extent.spatial > 300000;
}

std::vector<BatchSweepPoint> BatchSweep() {
  std::vector<BatchSweepPoint> points;
  for (const char* list : {"ci", "regressions"}) {
    for (const ChannelExtent& extent : LoadShapes(list).batches) {
      const bool repeated = std::string(list) == "regressions" && extent.batch == 2 &&
                            extent.channels == 3 && extent.spatial == 35;
      for (const DTypePair& dtypes : kDTypePairs) {
        const bool is_probe = dtypes.weight_dtype == dtypes.dtype &&
                              (dtypes.dtype == DType::kF32 || dtypes.dtype == DType::kBF16);
        if (!repeated && (!IsLarge(extent) || is_probe)) {
          points.push_back({extent, dtypes});
        }
      }
    }
  }
  return points;
}

std::string PointName(const BatchSweepPoint& point) {
  return DTypePairName(point.dtypes) + "Batch" + std::to_string(point.extent.batch) + "Channels" +
         std::to_string(point.extent.channels) + "Spatial" + std::to_string(point.extent.spatial);
}

enum class Affine { kNone, kWeight, kBias, kBoth };

class BatchNormTest : public ::testing::TestWithParam<BatchSweepPoint> {
 protected:
  static BatchNormShape Shape(BatchNormLayout layout) {
    const ChannelExtent& extent = GetParam().extent;
    return {extent.batch, extent.channels, extent.spatial, layout};
  }
  /// x of channel statistics that differ from 0 and 1.
  static std::vector<double> MakeX(DType dtype) {
    const ChannelExtent& extent = GetParam().extent;
    return MakeNormal(extent.batch * extent.channels * extent.spatial, 1.5, 2.0, dtype, 31);
  }
  static BatchForwardCase MakeForward(BatchNormMode mode, BatchNormLayout layout, Affine affine) {
    const DTypePair dtypes = GetParam().dtypes;
    const int64_t channels = GetParam().extent.channels;
    BatchForwardCase problem;
    problem.shape = Shape(layout);
    problem.mode = mode;
    problem.dtypes = dtypes;
    problem.x = MakeX(dtypes.dtype);
    if (affine == Affine::kWeight || affine == Affine::kBoth) {
      problem.weight = MakeNormal(channels, 1.0, 0.5, dtypes.weight_dtype, 32);
    }
    if (affine == Affine::kBias || affine == Affine::kBoth) {
      problem.bias = MakeNormal(channels, 0.0, 0.5, dtypes.weight_dtype, 33);
    }
    const DType statistics = StatisticsDType(dtypes.dtype);
    problem.running_mean = MakeNormal(channels, 1.0, 1.0, statistics, 34);
    problem.running_var = MakeNormal(channels, 4.0, 0.2, statistics, 35);
    return problem;
  }
  static BatchBackwardCase MakeBackward(BatchNormMode mode, BatchNormLayout layout) {
    const BatchForwardCase forward = MakeForward(mode, layout, Affine::kWeight);
    BatchBackwardCase problem;
    problem.shape = forward.shape;
    problem.mode = mode;
    problem.dtypes = forward.dtypes;
    problem.x = forward.x;
    problem.dy =
        MakeNormal(static_cast<int64_t>(forward.x.size()), 0.25, 1.0, forward.dtypes.dtype, 36);
    problem.weight = forward.weight;
    if (mode == BatchNormMode::kInference) {
      problem.running_mean = forward.running_mean;
      problem.running_var = forward.running_var;
    }
    return problem;
  }
  static std::vector<BatchNormLayout> Layouts() {
    return {BatchNormLayout::kNchw, BatchNormLayout::kNhwc};
  }
  /// All four, one only for large tensors.
  static std::vector<Affine> Affines() {
    if (IsLarge(GetParam().extent)) {
      return {Affine::kBoth};
    }
    return {Affine::kNone, Affine::kWeight, Affine::kBias, Affine::kBoth};
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(BatchNormTest, TrainingForwardMatchesReference) {
  for (BatchNormLayout layout : Layouts()) {
    for (Affine affine : Affines()) {
      SCOPED_TRACE(layout == BatchNormLayout::kNchw ? "NCHW" : "NHWC");
      SCOPED_TRACE(static_cast<int>(affine));
      RunAndCheck(*runner_, MakeForward(BatchNormMode::kTraining, layout, affine));
    }
  }
}

TEST_P(BatchNormTest, InferenceForwardMatchesReference) {
  for (BatchNormLayout layout : Layouts()) {
    for (Affine affine : Affines()) {
      SCOPED_TRACE(layout == BatchNormLayout::kNchw ? "NCHW" : "NHWC");
      SCOPED_TRACE(static_cast<int>(affine));
      RunAndCheck(*runner_, MakeForward(BatchNormMode::kInference, layout, affine));
    }
  }
}

TEST_P(BatchNormTest, TrainingBackwardMatchesReference) {
  for (BatchNormLayout layout : Layouts()) {
    for (SavedStatistics statistics : {SavedStatistics::kGiven, SavedStatistics::kRecomputed}) {
      SCOPED_TRACE(layout == BatchNormLayout::kNchw ? "NCHW" : "NHWC");
      SCOPED_TRACE(statistics == SavedStatistics::kGiven ? "given" : "recomputed");
      BatchBackwardCase problem = MakeBackward(BatchNormMode::kTraining, layout);
      problem.statistics = statistics;
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(BatchNormTest, InferenceBackwardMatchesReference) {
  for (BatchNormLayout layout : Layouts()) {
    SCOPED_TRACE(layout == BatchNormLayout::kNchw ? "NCHW" : "NHWC");
    RunAndCheck(*runner_, MakeBackward(BatchNormMode::kInference, layout));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormTest, ::testing::ValuesIn(BatchSweep()),
                         [](const auto& named) { return PointName(named.param); });

}  // namespace
}  // namespace norm::testing
