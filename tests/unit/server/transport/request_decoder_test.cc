#include "server/transport/request_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/server/transport/decoded_request.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

TensorRoleSet Roles(std::initializer_list<TensorRole> roles) {
  TensorRoleSet set;
  for (const TensorRole role : roles) set.Add(role);
  return set;
}

TEST(RequestDecoderTest, RowForwardTakesShapeFromTrailingDimensions) {
  Decoded<NormalizeRequest> decoded(LayerForward());
  ASSERT_TRUE(decoded.job.ok()) << decoded.job.status();
  const NormProblem& problem = (*decoded.job)->problem;
  EXPECT_EQ(problem.op, Op::kLayerNorm);
  EXPECT_EQ(problem.direction, Direction::kForward);
  EXPECT_EQ(problem.rows, 2);
  EXPECT_EQ(problem.hidden_size, 12);
  EXPECT_EQ(problem.eps, 1e-5);
  EXPECT_EQ((*decoded.job)->priority, Priority::kInteractive);
  EXPECT_EQ(problem.inputs, Roles({TensorRole::kX, TensorRole::kWeight, TensorRole::kBias}));
  EXPECT_EQ(problem.outputs, Roles({TensorRole::kY}));
  EXPECT_EQ((*decoded.job)->inputs[static_cast<size_t>(TensorRole::kX)].size_bytes, 96);
}

TEST(RequestDecoderTest, OptionsReachTheProblem) {
  NormalizeRequest request = RmsForward();
  request.mutable_rms_norm()->set_eps(0.0);
  request.mutable_rms_norm()->set_weight_offset(1.0);
  request.mutable_rms_norm()->set_rounding(norm::v1::ROUNDING_NORMALIZED_FIRST);
  *request.mutable_residual() = Zeros({2, 3, 4});
  request.set_return_statistics(true);
  request.set_priority(norm::v1::PRIORITY_BULK);
  Decoded<NormalizeRequest> decoded(request);
  ASSERT_TRUE(decoded.job.ok()) << decoded.job.status();
  const NormProblem& problem = (*decoded.job)->problem;
  EXPECT_EQ(problem.eps, 0.0);
  EXPECT_EQ(problem.weight_offset, 1.0);
  EXPECT_EQ(problem.rounding, Rounding::kNormalizedFirst);
  EXPECT_EQ((*decoded.job)->priority, Priority::kBulk);
  EXPECT_EQ(problem.outputs, Roles({TensorRole::kY, TensorRole::kResidualSum, TensorRole::kRstd}));
}

TEST(RequestDecoderTest, BatchNormLayoutsPlaceChannels) {
  NormalizeRequest request = BatchForward();
  Decoded<NormalizeRequest> nchw(request);
  ASSERT_TRUE(nchw.job.ok()) << nchw.job.status();
  const BatchNormShape& shape = (*nchw.job)->problem.batch_norm_shape;
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.channels, 3);
  EXPECT_EQ(shape.spatial, 20);
  EXPECT_EQ((*nchw.job)->problem.rows, 40);
  EXPECT_EQ((*nchw.job)->problem.momentum, 0.1);
  EXPECT_EQ((*nchw.job)->problem.outputs,
            Roles({TensorRole::kY, TensorRole::kRunningMean, TensorRole::kRunningVar}));

  request.mutable_batch_norm()->set_layout(norm::v1::BatchNorm::LAYOUT_NHWC);
  request.mutable_batch_norm()->set_num_batches_tracked(3);
  *request.mutable_x() = Zeros({2, 4, 5, 3});
  Decoded<NormalizeRequest> nhwc(request);
  ASSERT_TRUE(nhwc.job.ok()) << nhwc.job.status();
  EXPECT_EQ((*nhwc.job)->problem.batch_norm_shape.channels, 3);
  EXPECT_EQ((*nhwc.job)->problem.batch_norm_shape.spatial, 20);
  EXPECT_EQ((*nhwc.job)->problem.momentum, 0.25);
}

TEST(RequestDecoderTest, StatisticsComeFromTrainingOnlyWhereTheyExist) {
  NormalizeRequest request = BatchForward();
  request.set_return_statistics(true);
  Decoded<NormalizeRequest> training(request);
  ASSERT_TRUE(training.job.ok());
  EXPECT_TRUE((*training.job)->problem.outputs.Has(TensorRole::kMean));
  request.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_INFERENCE);
  Decoded<NormalizeRequest> inference(request);
  ASSERT_TRUE(inference.job.ok());
  EXPECT_EQ((*inference.job)->problem.outputs, Roles({TensorRole::kY, TensorRole::kRstd}));
}

TEST(RequestDecoderTest, BackwardOutputsFollowWhatForwardHad) {
  NormalizeBackwardRequest request = RmsBackward();
  Decoded<NormalizeBackwardRequest> rms(request);
  ASSERT_TRUE(rms.job.ok()) << rms.job.status();
  EXPECT_EQ((*rms.job)->problem.outputs, Roles({TensorRole::kDx, TensorRole::kDweight}));
  request.set_omit_dweight(true);
  Decoded<NormalizeBackwardRequest> omitted(request);
  EXPECT_EQ((*omitted.job)->problem.outputs, Roles({TensorRole::kDx}));

  Decoded<NormalizeBackwardRequest> layer(LayerBackward());
  ASSERT_TRUE(layer.job.ok()) << layer.job.status();
  EXPECT_EQ((*layer.job)->problem.outputs, Roles({TensorRole::kDx, TensorRole::kDbias}));
  EXPECT_EQ((*layer.job)->problem.weight_dtype, DType::kF32);

  for (const auto mode :
       {norm::v1::BatchNorm::MODE_TRAINING, norm::v1::BatchNorm::MODE_INFERENCE}) {
    Decoded<NormalizeBackwardRequest> batch(BatchBackward(mode));
    EXPECT_TRUE(batch.job.ok()) << batch.job.status();
  }
}

TEST(RequestDecoderTest, EmptyTensorsAreRequestsToo) {
  NormalizeRequest rows = RmsForward();
  *rows.mutable_x() = Zeros({3, 0, 4});
  Decoded<NormalizeRequest> empty_rows(rows);
  ASSERT_TRUE(empty_rows.job.ok()) << empty_rows.job.status();
  EXPECT_EQ((*empty_rows.job)->problem.rows, 0);
  EXPECT_EQ((*empty_rows.job)->problem.hidden_size, 4);

  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 3, 7, 7}, {4, 3, 0, 7}}) {
    NormalizeRequest batch = BatchForward();
    *batch.mutable_x() = Zeros(shape);
    Decoded<NormalizeRequest> decoded(batch);
    EXPECT_TRUE(decoded.job.ok()) << decoded.job.status();
  }
}

TEST(RequestDecoderTest, AnEmptyTensorMayNotClaimAGreatLength) {
  constexpr int64_t kMost = 1 << 20;
  NormalizeRequest batch = BatchForward();
  batch.clear_weight();
  batch.clear_bias();
  batch.clear_running_mean();
  batch.clear_running_var();
  *batch.mutable_x() = Zeros({0, kMost});
  EXPECT_TRUE(Decoded<NormalizeRequest>(batch).job.ok());
  *batch.mutable_x() = Zeros({0, kMost + 1});
  const absl::Status channels = Decoded<NormalizeRequest>(batch).job.status();
  EXPECT_EQ(channels.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(channels.message()), testing::HasSubstr("has 1048577 channels"));

  NormalizeRequest rows = RmsForward();
  *rows.mutable_x() = Zeros({0, int64_t{1} << 60});
  const absl::Status hidden = Decoded<NormalizeRequest>(rows).job.status();
  EXPECT_EQ(hidden.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(hidden.message()), testing::HasSubstr("the limit is 1048576"));
}

TEST(RequestDecoderTest, MixedWeightDTypesAreTaken) {
  NormalizeRequest request = RmsForward();
  *request.mutable_x() = RawTensor(norm::v1::DTYPE_BF16, {2, 4}, std::string(16, '\0'));
  Decoded<NormalizeRequest> f32_weight(request);
  ASSERT_TRUE(f32_weight.job.ok()) << f32_weight.job.status();
  EXPECT_EQ((*f32_weight.job)->problem.dtype, DType::kBF16);
  EXPECT_EQ((*f32_weight.job)->problem.weight_dtype, DType::kF32);
  *request.mutable_weight() = RawTensor(norm::v1::DTYPE_BF16, {4}, std::string(8, '\0'));
  Decoded<NormalizeRequest> bf16_weight(request);
  EXPECT_EQ((*bf16_weight.job)->problem.weight_dtype, DType::kBF16);
}

TEST(RequestDecoderTest, OutputsPastTheLimitAreResourceExhausted) {
  // Statistics of as many channels as an empty tensor may claim.
  NormalizeRequest claimed;
  claimed.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  claimed.set_return_statistics(true);
  *claimed.mutable_x() = RawTensor(norm::v1::DTYPE_F32, {0, 1 << 20}, "");
  Decoded<NormalizeRequest> decoded(claimed);
  EXPECT_EQ(decoded.job.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(decoded.job.status().message()), HasSubstr("max_message_bytes 1048576"));

  NormalizeRequest doubled;  // y and residual_sum together
  doubled.mutable_rms_norm();
  *doubled.mutable_x() = Zeros({160, 1024});
  Decoded<NormalizeRequest> fits(doubled);
  EXPECT_TRUE(fits.job.ok()) << fits.job.status();
  *doubled.mutable_residual() = Zeros({160, 1024});
  Decoded<NormalizeRequest> exceeds(doubled);
  EXPECT_EQ(exceeds.job.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(RequestDecoderTest, KindIsKnownOnlyWhereOpAndDtypeAre) {
  NormalizeRequest request = LayerForward();
  ASSERT_TRUE(KindOf(request).has_value());
  EXPECT_EQ(KindOf(request)->op, Op::kLayerNorm);
  EXPECT_EQ(KindOf(request)->dtype, DType::kF32);
  request.mutable_x()->set_dtype(norm::v1::DTYPE_UNSPECIFIED);
  EXPECT_FALSE(KindOf(request).has_value());
  request = LayerForward();
  request.clear_op();
  EXPECT_FALSE(KindOf(request).has_value());
}

}  // namespace
}  // namespace norm::server
