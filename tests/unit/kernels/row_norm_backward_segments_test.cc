// Segments backward: many row-norm requests in one call, each with the bits it has alone, gradients
// of weight and bias included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
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
  std::vector<std::byte> dx;
  std::vector<std::byte> dweight;
  std::vector<std::byte> dbias;
  Args args;
};

/// Requests that differ in rows, parameters and options, by their index.
template <typename Args>
void Make(int64_t hidden_size, int64_t most_rows, DTypePair dtypes, int index,
          Request<Args>& request) {
  constexpr bool kLayer = std::is_same_v<Args, LayerNormBackwardArgs>;
  const auto seed = static_cast<uint64_t>(2000 + index * 10);
  const int64_t rows = index % 7 == 3 ? 0 : 1 + index * 29 % most_rows;
  Args& args = request.args;
  args.rows = rows;
  args.hidden_size = hidden_size;
  args.dtype = dtypes.dtype;
  args.weight_dtype = dtypes.weight_dtype;
  args.eps = 1e-6 * (1 + index % 4);
  const auto input = [&](DType dtype, const std::vector<double>& values) {
    request.inputs.emplace_back(dtype, values);
    return request.inputs.back().data();
  };
  const auto data = [&](uint64_t offset) {
    return input(dtypes.dtype,
                 MakeData(DataKind::kNormal, rows, hidden_size, dtypes.dtype, seed + offset));
  };
  args.x = data(0);
  args.dy = data(1);
  if (index % 2 == 0) {
    args.weight = input(dtypes.weight_dtype,
                        MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, seed + 2));
  }
  if (index % 3 == 1 && rows > 0) {
    const DType statistics = StatisticsDType(dtypes.dtype);
    args.rstd = input(statistics, std::vector<double>(static_cast<size_t>(rows), 1.0));
    if constexpr (kLayer) {
      args.mean = input(statistics, std::vector<double>(static_cast<size_t>(rows), 0.0));
    }
  }
  if (index % 5 == 4 && rows > 0) args.dresidual_sum = data(3);
  request.dx = OutputBytes(dtypes.dtype, rows * hidden_size);
  args.dx = request.dx.data();
  request.dweight = OutputBytes(dtypes.weight_dtype, hidden_size);
  if (index % 4 != 2) args.dweight = request.dweight.data();
  if constexpr (kLayer) {
    request.dbias = OutputBytes(dtypes.weight_dtype, hidden_size);
    if (index % 6 != 5) args.dbias = request.dbias.data();
  }
}

template <typename Args>
void ExpectBitsAsAlone(int64_t hidden_size, int64_t most_rows, DTypePair dtypes, int count) {
  const std::unique_ptr<NormRunner> runner = MakeTestRunner();
  std::deque<Request<Args>> together(static_cast<size_t>(count));
  std::vector<NormCall> calls;
  for (int i = 0; i < count; ++i) {
    Make(hidden_size, most_rows, dtypes, i, together[static_cast<size_t>(i)]);
    calls.emplace_back(together[static_cast<size_t>(i)].args);
  }
  const Status status = runner->RunSegments(calls);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    Request<Args> alone;
    Make(hidden_size, most_rows, dtypes, i, alone);
    const Status one = runner->Run(alone.args);
    ASSERT_TRUE(one.ok()) << one.message();
    const Request<Args>& of_many = together[static_cast<size_t>(i)];
    EXPECT_EQ(of_many.dx, alone.dx);
    EXPECT_EQ(of_many.dweight, alone.dweight);
    EXPECT_EQ(of_many.dbias, alone.dbias);
  }
}

class RowNormBackwardSegmentsTest : public ::testing::TestWithParam<DTypePair> {};

TEST_P(RowNormBackwardSegmentsTest, EverySegmentHasTheBitsItHasAlone) {
  // Lanes, rows in singles, strips, groups of warps, blocks that a warp feeds, rows that are read again.
  for (int64_t hidden_size : {1, 40, 257, 1023, 1024, 4096, 4097, 20000, 270000}) {
    SCOPED_TRACE(hidden_size);
    const int count = hidden_size > 5000 ? 6 : 16;
    const int64_t most_rows = hidden_size > 5000 ? 5 : 83;
    ExpectBitsAsAlone<RmsNormBackwardArgs>(hidden_size, most_rows, GetParam(), count);
    ExpectBitsAsAlone<LayerNormBackwardArgs>(hidden_size, most_rows, GetParam(), count);
  }
}

TEST_P(RowNormBackwardSegmentsTest, SegmentsOfManyRowsHaveTheBitsTheyHaveAlone) {
  // Alone, more rows than multiprocessors may end with their gradients in one launch.
  constexpr int64_t kMostRows = 700;
  constexpr int kCount = 8;
  for (int64_t hidden_size : {128, 1024, 2048, 4096}) {
    SCOPED_TRACE(hidden_size);
    ExpectBitsAsAlone<RmsNormBackwardArgs>(hidden_size, kMostRows, GetParam(), kCount);
    ExpectBitsAsAlone<LayerNormBackwardArgs>(hidden_size, kMostRows, GetParam(), kCount);
  }
}

TEST_P(RowNormBackwardSegmentsTest, MoreSegmentsThanOneLaunchTakes) {
  ExpectBitsAsAlone<RmsNormBackwardArgs>(96, 83, GetParam(), 130);
  ExpectBitsAsAlone<LayerNormBackwardArgs>(96, 83, GetParam(), 130);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowNormBackwardSegmentsTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

TEST(RowNormBackwardSegmentErrorsTest, SegmentsThatAreBadOrUnequalAreNamed) {
  std::deque<Request<RmsNormBackwardArgs>> requests(3);
  for (int i = 0; i < 3; ++i) {
    Make(64, 83, {DType::kF32, DType::kF32}, i, requests[static_cast<size_t>(i)]);
  }
  const auto expect_refused = [&](const char* part) {
    std::vector<NormCall> calls;
    for (const auto& request : requests) calls.emplace_back(request.args);
    const Status status = MakeTestRunner()->RunSegments(calls);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  requests[1].args.eps = -1.0;
  expect_refused("segment 1: eps -1 must be finite and >= 0");
  requests[1].args.eps = 1e-5;
  requests[2].args.hidden_size = 32;
  expect_refused("segment 2: hidden_size 32 differs from 64 of segment 0");
}

TEST(RowNormNoBackwardSegmentsTest, NoSegmentsAreNoWork) {
  EXPECT_TRUE(ValidateSegments(std::span<const RmsNormBackwardArgs>()).ok());
  EXPECT_TRUE(ValidateSegments(std::span<const LayerNormBackwardArgs>()).ok());
  ThreadPool threads(1);
  EXPECT_TRUE(cpu::RmsNormBackwardSegments({}, {}, threads).ok());
  EXPECT_TRUE(cpu::LayerNormBackwardSegments({}, {}, threads).ok());
}

}  // namespace
}  // namespace norm::testing
