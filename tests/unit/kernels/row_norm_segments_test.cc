// Segments: many row-norm requests in one call, each with the bits it has alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <variant>
#include <vector>

#include "tests/support/host_tensor.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using ::testing::HasSubstr;

/// Host memory of one request, and its arguments.
template <typename Args>
struct Request {
  std::deque<InputTensor> inputs;
  std::vector<std::byte> y;
  std::vector<std::byte> residual_sum;
  std::vector<std::byte> mean;
  std::vector<std::byte> rstd;
  std::vector<std::byte> row_scale;
  Args args;
};

/// What requests of a call share.
struct Common {
  int64_t hidden_size;
  DTypePair dtypes;
};

/// Requests that differ in rows, parameters, options and y, by their index.
template <typename Args>
void Make(const Common& common, int index, Request<Args>& request) {
  constexpr bool kLayer = std::is_same_v<Args, LayerNormForwardArgs>;
  const DType dtype = common.dtypes.dtype;
  const DType weight_dtype = common.dtypes.weight_dtype;
  const uint64_t seed = 1000 + static_cast<uint64_t>(index) * 10;
  const int64_t rows = index % 7 == 3 ? 0 : 1 + index * 5 % 23;
  const int64_t elements = rows * common.hidden_size;
  Args& args = request.args;
  args.rows = rows;
  args.hidden_size = common.hidden_size;
  args.dtype = dtype;
  args.weight_dtype = weight_dtype;
  args.eps = 1e-6 * (1 + index % 4);
  const auto input = [&](DType of, const std::vector<double>& values) {
    request.inputs.emplace_back(of, values);
    return request.inputs.back().data();
  };
  args.x = input(dtype, MakeData(DataKind::kNormal, rows, common.hidden_size, dtype, seed));
  if (index % 2 == 0) {
    args.weight =
        input(weight_dtype, MakeNormal(common.hidden_size, 1.0, 0.5, weight_dtype, seed + 1));
  }
  if constexpr (kLayer) {
    if (index % 3 == 0) {
      args.bias =
          input(weight_dtype, MakeNormal(common.hidden_size, 0.0, 0.5, weight_dtype, seed + 2));
    }
    request.mean = OutputBytes(StatisticsDType(dtype), rows);
    if (index % 4 == 1) args.mean = request.mean.data();
  } else if (args.weight != nullptr && index % 4 == 2) {
    args.weight_offset = 1.0;
  }
  if (index % 5 == 4 && rows > 0) {
    args.residual =
        input(dtype, MakeData(DataKind::kNormal, rows, common.hidden_size, dtype, seed + 3));
    request.residual_sum = OutputBytes(dtype, elements);
    args.residual_sum = request.residual_sum.data();
  }
  args.rounding = index % 6 == 5 ? Rounding::kNormalizedFirst : Rounding::kOnce;
  request.y = OutputBytes(dtype, elements);
  args.y = request.y.data();
  request.rstd = OutputBytes(StatisticsDType(dtype), rows);
  if (index % 2 == 1) args.rstd = request.rstd.data();
  if (dtype != DType::kF64 && index % 8 >= 5 && rows > 0) {
    args.output_format = static_cast<OutputFormat>(index % 8 - 4);
    request.y.resize(static_cast<size_t>(elements));
    if (HasRowScale(args.output_format)) {
      request.row_scale = OutputBytes(DType::kF32, rows);
      args.row_scale = request.row_scale.data();
    } else {
      args.y_scale = 0.25F;
    }
  }
}

template <typename Args>
void ExpectBitsAsAlone(const Common& common, int count) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  std::deque<Request<Args>> together(static_cast<size_t>(count));
  std::vector<NormCall> calls;
  for (int i = 0; i < count; ++i) {
    Make(common, i, together[static_cast<size_t>(i)]);
    calls.emplace_back(together[static_cast<size_t>(i)].args);
  }
  const Status status = runner->RunSegments(calls);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    Request<Args> alone;
    Make(common, i, alone);
    const Status one = runner->Run(alone.args);
    ASSERT_TRUE(one.ok()) << one.message();
    const Request<Args>& of_many = together[static_cast<size_t>(i)];
    EXPECT_EQ(of_many.y, alone.y);
    EXPECT_EQ(of_many.residual_sum, alone.residual_sum);
    EXPECT_EQ(of_many.mean, alone.mean);
    EXPECT_EQ(of_many.rstd, alone.rstd);
    EXPECT_EQ(of_many.row_scale, alone.row_scale);
  }
}

class RowNormSegmentsTest : public ::testing::TestWithParam<DTypePair> {};

TEST_P(RowNormSegmentsTest, EverySegmentHasTheBitsItHasAlone) {
  // Sub-warp rows, rows in singles, blocks, clusters, rows that are read again.
  for (int64_t hidden_size : {1, 40, 257, 1024, 4096, 40000, 300000}) {
    SCOPED_TRACE(hidden_size);
    const int count = hidden_size > 5000 ? 6 : 16;
    ExpectBitsAsAlone<RmsNormForwardArgs>({hidden_size, GetParam()}, count);
    ExpectBitsAsAlone<LayerNormForwardArgs>({hidden_size, GetParam()}, count);
  }
}

TEST_P(RowNormSegmentsTest, MoreSegmentsThanOneLaunchTakes) {
  ExpectBitsAsAlone<RmsNormForwardArgs>({96, GetParam()}, 130);
  ExpectBitsAsAlone<LayerNormForwardArgs>({96, GetParam()}, 130);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowNormSegmentsTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

class RowNormSegmentErrorsTest : public ::testing::Test {
 protected:
  RowNormSegmentErrorsTest() : requests_(3) {
    for (int i = 0; i < 3; ++i)
      Make({64, {DType::kF32, DType::kF32}}, i, requests_[static_cast<size_t>(i)]);
  }

  void ExpectRefused(const char* part) {
    std::vector<NormCall> calls;
    for (const auto& request : requests_) calls.emplace_back(request.args);
    const Status status = MakeTestRunner()->RunSegments(calls);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(part));
  }

  std::deque<Request<RmsNormForwardArgs>> requests_;
};

TEST_F(RowNormSegmentErrorsTest, ABadSegmentIsNamedAndNothingIsWritten) {
  requests_[1].args.eps = -1.0;
  ExpectRefused("segment 1: eps -1 must be finite and >= 0");
}

TEST_F(RowNormSegmentErrorsTest, SegmentsThatCannotShareALaunchAreNamed) {
  requests_[2].args.hidden_size = 32;
  ExpectRefused("segment 2: hidden_size 32 differs from 64 of segment 0");
  requests_[2].args.hidden_size = 64;
  requests_[0].args.dtype = DType::kF16;
  requests_[1].args.dtype = DType::kF16;
  ExpectRefused("segment 2: dtype f32 differs from f16 of segment 0");
  for (auto& request : requests_) request.args.dtype = DType::kF16;
  requests_[1].args.weight_dtype = DType::kF16;
  ExpectRefused("segment 1: weight_dtype f16 differs from f32 of segment 0");
}

TEST(RowNormNoSegmentsTest, NoSegmentsAreNoWork) {
  EXPECT_TRUE(ValidateSegments(std::span<const RmsNormForwardArgs>()).ok());
  EXPECT_TRUE(ValidateSegments(std::span<const LayerNormForwardArgs>()).ok());
  ThreadPool threads(1);
  EXPECT_TRUE(cpu::RmsNormForwardSegments({}, {}, threads).ok());
  EXPECT_TRUE(cpu::LayerNormForwardSegments({}, {}, threads).ok());
}

}  // namespace
}  // namespace norm::testing
