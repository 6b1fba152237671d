// BatchNorm failures that users of other implementations reported, each as one test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/batch_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Pointwise;

constexpr DTypePair kF32 = {DType::kF32, DType::kF32};

class BatchNormFieldCaseTest : public ::testing::Test {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Case 4.
TEST_F(BatchNormFieldCaseTest, VarianceOfLargeMeansIsNeitherNegativeNorLost) {
  BatchForwardCase problem;
  problem.shape = {2, 3, 1024, BatchNormLayout::kNchw};
  problem.x.resize(2 * 3 * 1024);
  for (int i = 0; i < 2048; ++i) {
    const size_t at = static_cast<size_t>(i / 1024) * 3072 + static_cast<size_t>(i % 1024);
    problem.x[at] = static_cast<float>(3000 + 0.05 * ((37 * i) % 101 - 50) / 29);
    problem.x[at + 1024] = i % 7 - 3;
    problem.x[at + 2048] = -100000 + i % 2;
  }
  problem.running_mean = {0, 0, 0};
  problem.running_var = {1, 1, 1};
  RunAndCheck(*runner_, problem);
  const BatchForwardOutputs out = RunCase(*runner_, problem);
  const std::vector<double> rstd = ToValues(DType::kF32, out.rstd);
  EXPECT_NEAR(rstd[0], 1 / std::sqrt(2.52818e-03 + 1e-5), 1e-4);
  EXPECT_NEAR(rstd[2], 1 / std::sqrt(0.25001), 1e-6);

  BatchForwardCase narrow;
  narrow.shape = {2, 64, 1024, BatchNormLayout::kNchw};
  narrow.dtypes = {DType::kBF16, DType::kBF16};
  narrow.x = MakeNormal(2 * 64 * 1024, 5.0, 0.1, DType::kBF16, 81);
  RunAndCheck(*runner_, narrow);
}

// Case 5.
TEST_F(BatchNormFieldCaseTest, F16SumsAndSquaresDoNotOverflow) {
  for (BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
    BatchForwardCase problem;
    problem.shape = {3, 2, 128, BatchNormLayout::kNchw};
    problem.mode = mode;
    problem.dtypes = {DType::kF16, DType::kF16};
    problem.x = MakeData(DataKind::kSumsPastF16, 6, 128, DType::kF16, 82);
    problem.running_mean = {30000, 20000};
    problem.running_var = {2.5e7, 1e8};
    RunAndCheck(*runner_, problem);
  }
}

// Case 7.
TEST_F(BatchNormFieldCaseTest, AffineProductDoesNotOverflowOnTheWay) {
  std::vector<std::byte> first;
  for (const BatchNormShape& shape : {BatchNormShape{1, 1, 1, BatchNormLayout::kNchw},
                                      BatchNormShape{1, 1, 4, BatchNormLayout::kNchw},
                                      BatchNormShape{1, 1, 4, BatchNormLayout::kNhwc}}) {
    BatchForwardCase problem;
    problem.shape = shape;
    problem.mode = BatchNormMode::kInference;
    problem.x.assign(static_cast<size_t>(shape.spatial), static_cast<float>(-5e35));
    problem.running_mean = {0};
    problem.running_var = {100};
    problem.weight = {-2000};
    problem.bias = {1};
    const std::vector<std::byte> y = RunCase(*runner_, problem).y;
    EXPECT_THAT(ToValues(DType::kF32, y), Each(DoubleNear(9.9999995e37, 1e32)));
    if (first.empty()) {
      first.assign(y.begin(), y.begin() + 4);
    }
    for (size_t at = 0; at < y.size(); at += 4) {
      EXPECT_EQ(std::memcmp(y.data() + at, first.data(), 4), 0);
    }
  }
}

// Case 9.
TEST_F(BatchNormFieldCaseTest, EpsZeroIsAllowedAndABadEpsIsRefused) {
  BatchForwardCase problem;
  problem.shape = {4, 2, 1, BatchNormLayout::kNchw};
  problem.eps = 0.0;
  problem.x = {0, 1, 0, 2, 0, 3, 0, 5};
  RunAndCheck(*runner_, problem);  // the constant channel is NaN, the other one is not
  for (double eps : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    problem.eps = eps;
    EXPECT_EQ(RunCase(*runner_, problem).status.code(), StatusCode::kInvalidArgument) << eps;
  }
}

// Case 24.
TEST_F(BatchNormFieldCaseTest, F16ActivationsTakeF32RunningStatisticsAndAnyAffine) {
  for (BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
    for (int affine = 0; affine < 4; ++affine) {
      BatchForwardCase problem;
      problem.shape = {4, 3, 9, BatchNormLayout::kNchw};
      problem.mode = mode;
      problem.dtypes = {DType::kF16, DType::kF32};
      problem.x = MakeNormal(4 * 3 * 9, 1.0, 2.0, DType::kF16, 83);
      problem.running_mean = {1.0009765625, 0.1f, -3};
      problem.running_var = {1.0001220703125, 0.7f, 1e-3f};
      if (affine % 2 == 1) {
        problem.weight = {1.0001220703125, -2, 0.5};
      }
      if (affine / 2 == 1) {
        problem.bias = {0.25, 1, -1};
      }
      SCOPED_TRACE(affine);
      RunAndCheck(*runner_, problem);
    }
  }
}

// Case 25.
TEST_F(BatchNormFieldCaseTest, AnEmptyTensorLeavesRunningStatisticsBitUnchanged) {
  for (const BatchNormShape& shape : {BatchNormShape{0, 5, 49, BatchNormLayout::kNchw},
                                      BatchNormShape{4, 5, 0, BatchNormLayout::kNhwc}}) {
    BatchForwardCase forward;
    forward.shape = shape;
    forward.running_mean = {1, 2, static_cast<float>(0.1), 4, 5};
    forward.running_var = {1, 2, 3, static_cast<float>(1e-42), 5};
    const BatchForwardOutputs out = RunCase(*runner_, forward);
    ASSERT_TRUE(out.status.ok()) << out.status.message();
    EXPECT_EQ(out.new_running_mean, ToBytes(DType::kF32, forward.running_mean));
    EXPECT_EQ(out.new_running_var, ToBytes(DType::kF32, forward.running_var));
    EXPECT_THAT(ToValues(DType::kF32, out.mean), Each(0.0));
    EXPECT_THAT(ToValues(DType::kF32, out.rstd), Each(DoubleNear(316.227766, 2e-3)));

    forward.mode = BatchNormMode::kInference;
    EXPECT_TRUE(RunCase(*runner_, forward).status.ok());

    for (BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
      BatchBackwardCase backward;
      backward.shape = shape;
      backward.mode = mode;
      backward.statistics = SavedStatistics::kRecomputed;
      if (mode == BatchNormMode::kInference) {
        backward.running_mean = forward.running_mean;
        backward.running_var = forward.running_var;
      }
      const BatchBackwardOutputs gradients = RunCase(*runner_, backward);
      ASSERT_TRUE(gradients.status.ok()) << gradients.status.message();
      EXPECT_THAT(gradients.dweight, Each(std::byte{0}));
      EXPECT_THAT(gradients.dbias, Each(std::byte{0}));
    }
  }
}

// Case 26.
TEST_F(BatchNormFieldCaseTest, TrainingRefusesOneValuePerChannel) {
  BatchForwardCase problem;
  problem.shape = {1, 4, 1, BatchNormLayout::kNchw};
  problem.x = {1, 2, 3, 4};
  problem.running_mean = {0, 0, 0, 0};
  problem.running_var = {1, 1, 1, 1};
  EXPECT_EQ(RunCase(*runner_, problem).status.code(), StatusCode::kInvalidArgument);
  problem.mode = BatchNormMode::kInference;
  RunAndCheck(*runner_, problem);
  problem.mode = BatchNormMode::kTraining;
  problem.shape.spatial = 2;
  problem.x = {1, 2, 3, 4, 5, 7, 9, 8};
  RunAndCheck(*runner_, problem);
}

// Case 27.
TEST_F(BatchNormFieldCaseTest, RunningVarianceIsUnbiasedWhileTheOutputUsesTheBiasedOne) {
  BatchForwardCase problem;
  problem.shape = {4, 1, 1, BatchNormLayout::kNchw};
  problem.x = {1, 2, 3, 4};
  problem.running_mean = {0};
  problem.running_var = {1};
  const BatchForwardOutputs out = RunCase(*runner_, problem);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  EXPECT_THAT(ToValues(DType::kF32, out.y),
              Pointwise(DoubleNear(7e-6), {-1.3416354, -0.4472118, 0.4472118, 1.3416354}));
  EXPECT_NEAR(ToValues(DType::kF32, out.new_running_mean)[0], 0.25, 1e-7);
  EXPECT_NEAR(ToValues(DType::kF32, out.new_running_var)[0], 1.0666667, 1e-6);
}

TEST_F(BatchNormFieldCaseTest, MomentumOneTakesTheBatchAndZeroKeepsTheOld) {
  BatchForwardCase problem;
  problem.shape = {4, 1, 1, BatchNormLayout::kNchw};
  problem.x = {1, 2, 3, 4};
  problem.running_mean = {7};
  problem.running_var = {9};
  problem.momentum = 1.0;
  BatchForwardOutputs out = RunCase(*runner_, problem);
  EXPECT_EQ(ToValues(DType::kF32, out.new_running_mean)[0], 2.5);
  EXPECT_NEAR(ToValues(DType::kF32, out.new_running_var)[0], 5.0 / 3, 2e-7);
  problem.momentum = 0.0;
  out = RunCase(*runner_, problem);
  EXPECT_EQ(ToValues(DType::kF32, out.new_running_mean)[0], 7.0);
  EXPECT_EQ(ToValues(DType::kF32, out.new_running_var)[0], 9.0);
}

TEST_F(BatchNormFieldCaseTest, RunningStatisticsMayBeUpdatedInPlaceAndYMayReplaceX) {
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    BatchForwardCase problem;
    problem.shape = {6, 5, 50, layout};
    problem.x = MakeNormal(6 * 5 * 50, 1.0, 2.0, DType::kF32, 84);
    problem.running_mean = {1, 2, 3, 4, 5};
    problem.running_var = {5, 4, 3, 2, 1};
    const BatchForwardOutputs apart = RunCase(*runner_, problem);
    ASSERT_TRUE(apart.status.ok()) << apart.status.message();
    std::vector<std::byte> x = ToBytes(DType::kF32, problem.x);
    std::vector<std::byte> running_mean = ToBytes(DType::kF32, problem.running_mean);
    std::vector<std::byte> running_var = ToBytes(DType::kF32, problem.running_var);
    BatchNormForwardArgs args;
    args.x = x.data();
    args.y = x.data();
    args.running_mean = running_mean.data();
    args.running_var = running_var.data();
    args.new_running_mean = running_mean.data();
    args.new_running_var = running_var.data();
    args.shape = problem.shape;
    const Status status = runner_->Run(args);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(x, apart.y);
    EXPECT_EQ(running_mean, apart.new_running_mean);
    EXPECT_EQ(running_var, apart.new_running_var);
  }
}

// Case 30.
TEST_F(BatchNormFieldCaseTest, LayoutsAgreeForwardAndBackward) {
  for (const BatchNormShape& nchw : {BatchNormShape{1, 65, 10000, BatchNormLayout::kNchw},
                                     BatchNormShape{2, 3, 35, BatchNormLayout::kNchw},
                                     BatchNormShape{4, 1, 64, BatchNormLayout::kNchw}}) {
    SCOPED_TRACE(nchw.channels);
    BatchNormShape nhwc = nchw;
    nhwc.layout = BatchNormLayout::kNhwc;
    const int64_t elements = nchw.batch * nchw.channels * nchw.spatial;
    BatchForwardCase a;
    a.shape = nchw;
    a.x = MakeNormal(elements, 2.0, 1.0, DType::kF32, 85);
    BatchForwardCase b = a;
    b.shape = nhwc;
    b.x = ToOtherLayout(nchw, a.x);
    const std::vector<double> ya = ToValues(DType::kF32, RunCase(*runner_, a).y);
    const std::vector<double> yb =
        ToOtherLayout(nhwc, ToValues(DType::kF32, RunCase(*runner_, b).y));
    EXPECT_THAT(ya, Pointwise(DoubleNear(1e-5), yb));

    BatchBackwardCase da;
    da.shape = nchw;
    da.x = a.x;
    da.dy = MakeNormal(elements, 0.0, 1.0, DType::kF32, 86);
    BatchBackwardCase db = da;
    db.shape = nhwc;
    db.x = b.x;
    db.dy = ToOtherLayout(nchw, da.dy);
    const std::vector<double> dxa = ToValues(DType::kF32, RunCase(*runner_, da).dx);
    const std::vector<double> dxb =
        ToOtherLayout(nhwc, ToValues(DType::kF32, RunCase(*runner_, db).dx));
    EXPECT_THAT(dxa, Pointwise(DoubleNear(3e-5), dxb));
  }

  BatchForwardCase half;
  half.shape = {2, 64, 2500, BatchNormLayout::kNhwc};
  half.mode = BatchNormMode::kInference;
  half.dtypes = {DType::kF16, DType::kF16};
  half.x = MakeNormal(2 * 64 * 2500, 0.0, 1.0, DType::kF16, 87);
  half.running_mean.assign(64, 0.25);
  half.running_var.assign(64, 2.0);
  RunAndCheck(*runner_, half);
}

// Case 44.
TEST_F(BatchNormFieldCaseTest, EveryFiniteNarrowPatternPassesAnIdentityUnchanged) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const uint32_t infinity = dtype == DType::kF16 ? 0x7C00u : 0x7F80u;
    std::vector<uint16_t> x;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      if ((bits & 0x7FFFu) < infinity) {
        x.push_back(static_cast<uint16_t>(bits));
      }
    }
    ASSERT_EQ(x.size(), dtype == DType::kF16 ? 63488u : 65280u);
    for (int64_t channels : {1, 4}) {
      std::vector<uint16_t> y(x.size());
      const std::vector<float> zero(static_cast<size_t>(channels), 0.0f);
      const std::vector<float> one(static_cast<size_t>(channels), 1.0f);
      BatchNormForwardArgs args;
      args.x = x.data();
      args.y = y.data();
      args.running_mean = zero.data();
      args.running_var = one.data();
      args.shape = {static_cast<int64_t>(x.size()) / channels, channels, 1, BatchNormLayout::kNchw};
      args.mode = BatchNormMode::kInference;
      args.dtype = dtype;
      args.eps = 0.0;
      const Status status = runner_->Run(args);
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < x.size(); ++i) {
        const bool both_zero = (x[i] & 0x7FFF) == 0 && (y[i] & 0x7FFF) == 0;
        ASSERT_TRUE(both_zero || y[i] == x[i])
            << DTypeName(dtype) << " " << x[i] << " became " << y[i];
      }
    }
  }
}

TEST_F(BatchNormFieldCaseTest, NanStaysInItsChannel) {
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    BatchForwardCase clean;
    clean.shape = {5, 7, 40, layout};
    clean.x = MakeNormal(5 * 7 * 40, 0.0, 1.0, DType::kF32, 88);
    BatchForwardCase dirty = clean;
    const size_t at = 3 * 7 * 40 + 100;
    dirty.x[at] = std::nan("");
    const size_t bad = layout == BatchNormLayout::kNchw ? at / 40 % 7 : at % 7;
    const std::vector<double> a = ToValues(DType::kF32, RunCase(*runner_, clean).y);
    const std::vector<double> b = ToValues(DType::kF32, RunCase(*runner_, dirty).y);
    for (size_t i = 0; i < a.size(); ++i) {
      const size_t channel = layout == BatchNormLayout::kNchw ? i / 40 % 7 : i % 7;
      if (channel == bad) {
        EXPECT_TRUE(std::isnan(b[i]));
      } else {
        EXPECT_EQ(a[i], b[i]);
      }
    }
  }
}

}  // namespace
}  // namespace norm::testing
