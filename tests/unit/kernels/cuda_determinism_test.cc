// The same bits alone, in company, at any alignment, and every time.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/batch_norm_case.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

constexpr int kRepeats = 5;
/// One of each way a row is reduced: lanes of a warp, warp, block, cluster, streaming; whole 16-byte
/// accesses and single elements.
constexpr int64_t kHiddenSizes[] = {4,    7,    256,  1000,  1023,  4096,
                                    4097, 5000, 8192, 16384, 16392, 20001};

std::vector<std::byte> Slice(const std::vector<std::byte>& bytes, int64_t row, int64_t row_bytes) {
  const auto begin = bytes.begin() + row * row_bytes;
  return {begin, begin + row_bytes};
}

std::vector<double> SliceValues(const std::vector<double>& values, int64_t row, int64_t columns) {
  const auto begin = values.begin() + row * columns;
  return {begin, begin + columns};
}

class CudaDeterminismTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  int64_t Rows(int64_t hidden_size) const { return hidden_size > 5000 ? 300 : 4096; }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(CudaDeterminismTest, ForwardRowsKeepTheirBitsAloneAndMisaligned) {
  const DTypePair dtypes = GetParam();
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : kHiddenSizes) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << hidden_size);
      RowForwardCase all;
      all.op = op;
      all.rows = Rows(hidden_size);
      all.hidden_size = hidden_size;
      all.dtypes = dtypes;
      all.x = MakeData(DataKind::kNormal, all.rows, hidden_size, dtypes.dtype, 81);
      all.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 82);
      const RowForwardOutputs aligned = RunCase(*runner_, all);
      ASSERT_TRUE(aligned.status.ok()) << aligned.status.message();
      EXPECT_EQ(RunCase(*runner_, all, {1}).y, aligned.y) << "one element off";
      EXPECT_EQ(RunCase(*runner_, all, {3}).rstd, aligned.rstd) << "three elements off";
      const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtypes.dtype));
      for (int64_t row : {int64_t{0}, all.rows / 2, all.rows - 1}) {
        RowForwardCase alone = all;
        alone.rows = 1;
        alone.x = SliceValues(all.x, row, hidden_size);
        EXPECT_EQ(RunCase(*runner_, alone).y, Slice(aligned.y, row, row_bytes)) << "row " << row;
      }
    }
  }
}

TEST_P(CudaDeterminismTest, BackwardRowsKeepTheirBitsAndGradientsRepeat) {
  const DTypePair dtypes = GetParam();
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : kHiddenSizes) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << hidden_size);
      RowBackwardCase all;
      all.op = op;
      all.rows = 300;
      all.hidden_size = hidden_size;
      all.dtypes = dtypes;
      all.statistics = SavedStatistics::kRecomputed;
      all.x = MakeData(DataKind::kNormal, all.rows, hidden_size, dtypes.dtype, 83);
      all.dy = MakeData(DataKind::kNormal, all.rows, hidden_size, dtypes.dtype, 84);
      all.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 85);
      const RowBackwardOutputs first = RunCase(*runner_, all);
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      for (int repeat = 1; repeat < kRepeats; ++repeat) {
        const RowBackwardOutputs again = RunCase(*runner_, all);
        EXPECT_EQ(again.dx, first.dx);
        EXPECT_EQ(again.dweight, first.dweight);
        EXPECT_EQ(again.dbias, first.dbias);
      }
      const RowBackwardOutputs misaligned = RunCase(*runner_, all, {1});
      EXPECT_EQ(misaligned.dx, first.dx);
      EXPECT_EQ(misaligned.dweight, first.dweight);
      const int64_t row_bytes = hidden_size * static_cast<int64_t>(DTypeSize(dtypes.dtype));
      for (int64_t row : {int64_t{0}, int64_t{151}, all.rows - 1}) {
        RowBackwardCase alone = all;
        alone.rows = 1;
        alone.x = SliceValues(all.x, row, hidden_size);
        alone.dy = SliceValues(all.dy, row, hidden_size);
        EXPECT_EQ(RunCase(*runner_, alone).dx, Slice(first.dx, row, row_bytes)) << "row " << row;
      }
    }
  }
}

TEST_P(CudaDeterminismTest, BackwardsOfSeveralStreamsAtOnceKeepTheirBits) {
  constexpr int kStreams = 4;
  constexpr int kCalls = 12;
  const DTypePair dtypes = GetParam();
  for (int64_t hidden_size : {int64_t{128}, int64_t{2048}}) {
    RowBackwardCase request;
    request.op = Op::kLayerNorm;
    request.rows = 700;
    request.hidden_size = hidden_size;
    request.dtypes = dtypes;
    request.x = MakeData(DataKind::kNormal, request.rows, hidden_size, dtypes.dtype, 88);
    request.dy = MakeData(DataKind::kNormal, request.rows, hidden_size, dtypes.dtype, 89);
    request.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 90);
    const RowBackwardOutputs alone = RunCase(*runner_, request);
    ASSERT_TRUE(alone.status.ok()) << alone.status.message();
    std::vector<std::thread> threads;
    std::vector<int> wrong(kStreams);
    for (int stream = 0; stream < kStreams; ++stream) {
      threads.emplace_back([&, stream] {
        const std::unique_ptr<NormRunner> runner = MakeTestRunner();
        for (int call = 0; call < kCalls; ++call) {
          const RowBackwardOutputs outputs = RunCase(*runner, request);
          wrong[stream] += outputs.dx != alone.dx || outputs.dweight != alone.dweight ||
                           outputs.dbias != alone.dbias;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(kStreams)) << hidden_size;
  }
}

TEST_P(CudaDeterminismTest, ChannelsRepeatTheirBitsAtAnyAlignment) {
  const DTypePair dtypes = GetParam();
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    for (int64_t spatial : {int64_t{1}, int64_t{49}, int64_t{3136}}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(layout) << " " << spatial);
      BatchForwardCase forward;
      forward.shape = {16, 24, spatial, layout};
      forward.dtypes = dtypes;
      forward.x = MakeData(DataKind::kNormal, 16 * 24, spatial, dtypes.dtype, 86);
      const BatchForwardOutputs first = RunCase(*runner_, forward);
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      BatchBackwardCase backward;
      backward.shape = forward.shape;
      backward.dtypes = dtypes;
      backward.x = forward.x;
      backward.dy = MakeData(DataKind::kNormal, 16 * 24, spatial, dtypes.dtype, 87);
      const BatchBackwardOutputs first_gradients = RunCase(*runner_, backward);
      for (size_t misaligned_elements : {size_t{0}, size_t{1}}) {
        EXPECT_EQ(RunCase(*runner_, forward, {misaligned_elements}).y, first.y);
        const BatchBackwardOutputs again = RunCase(*runner_, backward, {misaligned_elements});
        EXPECT_EQ(again.dx, first_gradients.dx);
        EXPECT_EQ(again.dweight, first_gradients.dweight);
        EXPECT_EQ(again.dbias, first_gradients.dbias);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaDeterminismTest, ::testing::ValuesIn(kDTypePairs),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
