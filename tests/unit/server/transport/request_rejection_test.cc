// Requests that the decoder refuses: which field, by which rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/transport/field_error.h"
#include "tests/unit/server/transport/decoded_request.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

struct Rejection {
  const char* name;
  std::function<void(NormalizeRequest*)> forward;  // applied to `base`
  NormalizeRequest (*base)();
  const char* field;
  const char* message;
};

class ForwardRejectionTest : public testing::TestWithParam<Rejection> {};

TEST_P(ForwardRejectionTest, NamesFieldRuleAndValues) {
  NormalizeRequest request = GetParam().base();
  GetParam().forward(&request);
  Decoded<NormalizeRequest> decoded(request);
  EXPECT_EQ(decoded.job.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ViolatedField(decoded.job.status()), GetParam().field);
  EXPECT_THAT(std::string(decoded.job.status().message()), HasSubstr(GetParam().message));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kHuge = int64_t{1} << 62;

using R = NormalizeRequest*;

INSTANTIATE_TEST_SUITE_P(
    Rules, ForwardRejectionTest,
    testing::Values(
        Rejection{"NoOp", [](R r) { r->clear_op(); }, &RmsForward, "op", "is missing"},
        Rejection{"NoX", [](R r) { r->clear_x(); }, &RmsForward, "x", "x is missing"},
        Rejection{"UnspecifiedDtype",
                  [](R r) { r->mutable_x()->set_dtype(norm::v1::DTYPE_UNSPECIFIED); }, &RmsForward,
                  "x.dtype", "0 is not a known dtype"},
        Rejection{"UnknownDtype",
                  [](R r) { r->mutable_x()->set_dtype(static_cast<norm::v1::DType>(99)); },
                  &RmsForward, "x.dtype", "99 is not a known dtype"},
        Rejection{"RankZero", [](R r) { r->mutable_x()->clear_shape(); }, &RmsForward, "x.shape",
                  "rank 0"},
        Rejection{
            "NegativeDimension",
            [](R r) {
              *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {-1, 16}, std::string(64, 'x'));
            },
            &RmsForward, "x.shape", "dimension 0 is -1"},
        Rejection{
            "TwoNegativeDimensions",
            [](R r) {
              *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {-2, -8}, std::string(64, 'x'));
            },
            &RmsForward, "x.shape", "dimension 0 is -2"},
        Rejection{"NegativeAfterZero",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {0, -5}, "");
                  },
                  &RmsForward, "x.shape", "dimension 1 is -5"},
        Rejection{"OverflowingShape",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {kHuge, 4}, "abcd");
                  },
                  &RmsForward, "x.shape", "overflows"},
        Rejection{"OverflowingShapeWithZero",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {0, kHuge, kHuge}, "");
                  },
                  &RmsForward, "x.shape", "overflows"},
        Rejection{"ClaimedEightGiB",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {int64_t{1} << 31, 1}, "abcd");
                  },
                  &RmsForward, "x.data", "has 4 bytes != 8589934592 bytes"},
        Rejection{"TooManyBytes",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {1, 5}, std::string(28, 'x'));
                  },
                  &RmsForward, "x.data", "has 28 bytes != 20 bytes of shape [1,5] in f32"},
        Rejection{"TooFewBytes",
                  [](R r) {
                    *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {1, 10}, std::string(20, 'x'));
                  },
                  &RmsForward, "x.data", "has 20 bytes != 40 bytes of shape [1,10] in f32"},
        Rejection{"HiddenZero",
                  [](R r) {
                    *r->mutable_x() = Zeros({4, 0});
                  },
                  &RmsForward, "x.shape", "hidden_size 0"},
        Rejection{"NormalizedDimsOverRank",
                  [](R r) { r->mutable_rms_norm()->set_normalized_dims(4); }, &RmsForward,
                  "rms_norm.normalized_dims", "4 > rank 3"},
        Rejection{"NegativeNormalizedDims",
                  [](R r) { r->mutable_layer_norm()->set_normalized_dims(-1); }, &LayerForward,
                  "layer_norm.normalized_dims", "-1 must be >= 0"},
        Rejection{"EpsNegative", [](R r) { r->mutable_rms_norm()->set_eps(-1); }, &RmsForward,
                  "rms_norm.eps", "-1 must be finite and >= 0"},
        Rejection{"EpsNan", [](R r) { r->mutable_layer_norm()->set_eps(kNan); }, &LayerForward,
                  "layer_norm.eps", "nan must be finite"},
        Rejection{"EpsInfinite", [](R r) { r->mutable_batch_norm()->set_eps(kInf); }, &BatchForward,
                  "batch_norm.eps", "inf must be finite"},
        Rejection{"WeightOffsetNan", [](R r) { r->mutable_rms_norm()->set_weight_offset(kNan); },
                  &RmsForward, "rms_norm.weight_offset", "must be finite"},
        Rejection{"WeightOffsetWithoutWeight",
                  [](R r) {
                    r->mutable_rms_norm()->set_weight_offset(1);
                    r->clear_weight();
                  },
                  &RmsForward, "rms_norm.weight_offset", "needs a weight"},
        Rejection{"UnknownPriority",
                  [](R r) { r->set_priority(static_cast<norm::v1::Priority>(2)); }, &RmsForward,
                  "priority", "2 is not a known priority"},
        Rejection{
            "UnknownRounding",
            [](R r) { r->mutable_rms_norm()->set_rounding(static_cast<norm::v1::Rounding>(7)); },
            &RmsForward, "rms_norm.rounding", "7 is not a known rounding"},
        Rejection{"ShortWeight", [](R r) { *r->mutable_weight() = Zeros({3}); }, &RmsForward,
                  "weight", "weight length 3 != hidden_size 4"},
        Rejection{"NegativeWeightDimension",
                  [](R r) {
                    *r->mutable_weight() =
                        RawTensor(norm::v1::DTYPE_F32, {-4}, std::string(16, 'x'));
                  },
                  &RmsForward, "weight.shape", "dimension 0 is -4"},
        Rejection{"WeightOfOtherShape",
                  [](R r) {
                    *r->mutable_weight() = Zeros({2, 2});
                  },
                  &RmsForward, "weight.shape", "[2,2] must be [4]"},
        Rejection{"WeightDtype",
                  [](R r) {
                    *r->mutable_weight() = RawTensor(norm::v1::DTYPE_F16, {4}, std::string(8, 'x'));
                  },
                  &RmsForward, "weight.dtype", "f16 must be f32 or the dtype f32"},
        Rejection{
            "BiasDtypeDiffersFromWeight",
            [](R r) {
              *r->mutable_x() = RawTensor(norm::v1::DTYPE_F64, {1, 3, 4}, std::string(96, '\0'));
              *r->mutable_bias() = RawTensor(norm::v1::DTYPE_F64, {12}, std::string(96, '\0'));
            },
            &LayerForward, "bias.dtype", "f64 != dtype f32 of weight"},
        Rejection{"BiasForRmsNorm", [](R r) { *r->mutable_bias() = Zeros({4}); }, &RmsForward,
                  "bias", "is not allowed: rms_norm has none"},
        Rejection{"RunningMeanForRmsNorm", [](R r) { *r->mutable_running_mean() = Zeros({4}); },
                  &RmsForward, "running_mean", "is not allowed"},
        Rejection{"ResidualShape",
                  [](R r) {
                    *r->mutable_residual() = Zeros({6, 4});
                  },
                  &RmsForward, "residual.shape", "[6,4] != shape [2,3,4] of x"},
        Rejection{"ResidualDtype",
                  [](R r) {
                    *r->mutable_residual() =
                        RawTensor(norm::v1::DTYPE_F16, {2, 3, 4}, std::string(48, 'x'));
                  },
                  &RmsForward, "residual.dtype", "f16 != dtype f32 of x"},
        Rejection{"ResidualForBatchNorm",
                  [](R r) {
                    *r->mutable_residual() = Zeros({2, 3, 4, 5});
                  },
                  &BatchForward, "residual", "is not allowed"},
        Rejection{"ModeMissing", [](R r) { r->mutable_batch_norm()->clear_mode(); }, &BatchForward,
                  "batch_norm.mode", "must be training (1) or inference (2)"},
        Rejection{"UnknownLayout",
                  [](R r) {
                    r->mutable_batch_norm()->set_layout(
                        static_cast<norm::v1::BatchNorm::Layout>(5));
                  },
                  &BatchForward, "batch_norm.layout", "5 is not a known layout"},
        Rejection{"MomentumOverOne", [](R r) { r->mutable_batch_norm()->set_momentum(1.5); },
                  &BatchForward, "batch_norm.momentum", "1.5 must be in [0, 1]"},
        Rejection{"MomentumNan", [](R r) { r->mutable_batch_norm()->set_momentum(kNan); },
                  &BatchForward, "batch_norm.momentum", "must be in [0, 1]"},
        Rejection{"NegativeBatchCount",
                  [](R r) { r->mutable_batch_norm()->set_num_batches_tracked(-1); }, &BatchForward,
                  "batch_norm.num_batches_tracked", "-1 must be >= 0"},
        Rejection{"RankOneBatchNorm", [](R r) { *r->mutable_x() = Zeros({3}); }, &BatchForward,
                  "x.shape", "has rank 1, batch_norm needs >= 2"},
        Rejection{"ZeroChannels",
                  [](R r) {
                    *r->mutable_x() = Zeros({2, 0, 4});
                  },
                  &BatchForward, "x.shape", "0 channels"},
        Rejection{"OneValuePerChannel",
                  [](R r) {
                    *r->mutable_x() = Zeros({1, 3, 1, 1});
                  },
                  &BatchForward, "x.shape", "1 value per channel, training needs >= 2"},
        Rejection{"NoRunningStatisticsInInference",
                  [](R r) {
                    r->mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_INFERENCE);
                    r->clear_running_var();
                  },
                  &BatchForward, "running_var", "is missing: inference mode needs it"},
        Rejection{"RunningMeanAlone", [](R r) { r->clear_running_var(); }, &BatchForward,
                  "running_var", "is missing: running_mean is given"},
        Rejection{"RunningMeanLength", [](R r) { *r->mutable_running_mean() = Zeros({4}); },
                  &BatchForward, "running_mean", "length 4 != channels 3"},
        Rejection{"RunningMeanDtype",
                  [](R r) {
                    *r->mutable_running_mean() =
                        RawTensor(norm::v1::DTYPE_F16, {3}, std::string(6, 'x'));
                  },
                  &BatchForward, "running_mean.dtype", "f16 != dtype f32 of statistics"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

struct BackwardRejection {
  const char* name;
  std::function<void(NormalizeBackwardRequest*)> change;
  NormalizeBackwardRequest (*base)();
  const char* field;
  const char* message;
};

NormalizeBackwardRequest TrainingBackward() {
  return BatchBackward(norm::v1::BatchNorm::MODE_TRAINING);
}
NormalizeBackwardRequest InferenceBackward() {
  return BatchBackward(norm::v1::BatchNorm::MODE_INFERENCE);
}

class BackwardRejectionTest : public testing::TestWithParam<BackwardRejection> {};

TEST_P(BackwardRejectionTest, NamesFieldRuleAndValues) {
  NormalizeBackwardRequest request = GetParam().base();
  GetParam().change(&request);
  Decoded<NormalizeBackwardRequest> decoded(request);
  EXPECT_EQ(decoded.job.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ViolatedField(decoded.job.status()), GetParam().field);
  EXPECT_THAT(std::string(decoded.job.status().message()), HasSubstr(GetParam().message));
}

using B = NormalizeBackwardRequest*;

INSTANTIATE_TEST_SUITE_P(
    Rules, BackwardRejectionTest,
    testing::Values(
        BackwardRejection{"NoDy", [](B r) { r->clear_dy(); }, &RmsBackward, "dy", "is missing"},
        BackwardRejection{"DyShape",
                          [](B r) {
                            *r->mutable_dy() = Zeros({4, 6});
                          },
                          &RmsBackward, "dy.shape", "[4,6] != shape [6,4] of x"},
        BackwardRejection{"MeanForRmsNorm", [](B r) { *r->mutable_mean() = Zeros({6}); },
                          &RmsBackward, "mean", "rms_norm has none"},
        BackwardRejection{"RstdLength", [](B r) { *r->mutable_rstd() = Zeros({5}); }, &RmsBackward,
                          "rstd", "length 5 != rows 6"},
        BackwardRejection{"MeanAlone", [](B r) { r->clear_rstd(); }, &LayerBackward, "rstd",
                          "mean is given"},
        BackwardRejection{"RstdAlone", [](B r) { r->clear_mean(); }, &LayerBackward, "mean",
                          "rstd is given"},
        BackwardRejection{"BiasForRmsNorm", [](B r) { r->set_has_bias(true); }, &RmsBackward,
                          "has_bias", "rms_norm has no bias"},
        BackwardRejection{"ResidualGradientForBatchNorm",
                          [](B r) {
                            *r->mutable_dresidual_sum() = Zeros({2, 3, 4});
                          },
                          &TrainingBackward, "dresidual_sum", "is not allowed"},
        BackwardRejection{"RunningMeanInTraining",
                          [](B r) { *r->mutable_running_mean() = Zeros({3}); }, &TrainingBackward,
                          "running_mean", "only inference mode takes it"},
        BackwardRejection{"MeanInInference", [](B r) { *r->mutable_mean() = Zeros({3}); },
                          &InferenceBackward, "mean", "inference mode uses running_mean"},
        BackwardRejection{"NoRunningVarInInference", [](B r) { r->clear_running_var(); },
                          &InferenceBackward, "running_var", "is missing"},
        BackwardRejection{"OneValuePerChannel",
                          [](B r) {
                            *r->mutable_x() = Zeros({1, 3, 1});
                            *r->mutable_dy() = Zeros({1, 3, 1});
                          },
                          &TrainingBackward, "x.shape", "training needs >= 2"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace norm::server
