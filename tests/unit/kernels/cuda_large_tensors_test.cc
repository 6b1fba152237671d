// Row counts and sizes past 16, 23, 24 and 32 bits. Rows repeat a block of rows that is checked
// against the oracle on its own; a row's bits do not depend on what else is there, so every copy
// must have the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "norm/cuda/device_info.h"
#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"
#include "tests/unit/kernels/device_tensor.h"

namespace norm::testing {
namespace {

constexpr double kEps = 1e-5;

struct RowMoments {
  std::vector<double> mean;
  std::vector<double> rstd;
};

RowMoments MomentsOf(const std::vector<double>& x, int64_t rows, int64_t columns) {
  RowMoments moments;
  for (int64_t row = 0; row < rows; ++row) {
    const double* values = x.data() + row * columns;
    double mean = 0.0;
    for (int64_t i = 0; i < columns; ++i) mean += values[i] / static_cast<double>(columns);
    double variance = 0.0;
    for (int64_t i = 0; i < columns; ++i) {
      variance += (values[i] - mean) * (values[i] - mean) / static_cast<double>(columns);
    }
    moments.mean.push_back(mean);
    moments.rstd.push_back(1.0 / std::sqrt(variance + kEps));
  }
  return moments;
}

class CudaLargeTensorsTest : public ::testing::Test {
 protected:
  bool HasFreeMemory(int64_t bytes) {
    const Result<int64_t> free_bytes = cuda::FreeDeviceMemoryBytes(0);
    return free_bytes.ok() && free_bytes.value() >= bytes;
  }
  void Finish(const Status& launched) {
    ASSERT_TRUE(launched.ok()) << launched.message();
    const Status done = stream_.view().Synchronize();
    ASSERT_TRUE(done.ok()) << done.message();
  }

  /// A block of rows: its values, checked against the oracle here, and the bits of its y.
  struct Block {
    std::vector<double> values;
    std::vector<std::byte> x;
    std::vector<std::byte> y;
  };
  Block MakeBlock(Op op, int64_t rows, int64_t hidden_size, DType dtype) {
    Block block;
    block.values = MakeData(DataKind::kNormal, rows, hidden_size, dtype, 71);
    block.x = ToBytes(dtype, block.values);
    RowForwardCase forward;
    forward.op = op;
    forward.rows = rows;
    forward.hidden_size = hidden_size;
    forward.dtypes = {dtype, dtype};
    forward.eps = kEps;
    forward.x = block.values;
    RunAndCheck(*runner_, forward);
    block.y = RunCase(*runner_, forward).y;
    return block;
  }

  /// y of `rows` rows that repeat a block, both ops.
  void CheckForward(int64_t rows, int64_t block_rows, int64_t hidden_size, DType dtype) {
    const size_t row_bytes = static_cast<size_t>(hidden_size) * DTypeSize(dtype);
    for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
      SCOPED_TRACE(OpName(op));
      const Block block = MakeBlock(op, block_rows, hidden_size, dtype);
      const RepeatedRows x(stream_, block.x, row_bytes, rows);
      const RepeatedRows y(stream_, row_bytes, rows);
      ASSERT_NE(y.data(), nullptr);
      const auto run = [&](auto args, auto forward) {
        args.x = x.data();
        args.y = y.data();
        args.rows = rows;
        args.hidden_size = hidden_size;
        args.dtype = dtype;
        args.weight_dtype = dtype;
        args.eps = kEps;
        Finish(forward(args, Workspace(), stream_.view().handle()));
      };
      if (op == Op::kRmsNorm) {
        run(RmsNormForwardArgs(),
            [](const auto& a, Workspace w, StreamHandle s) { return RmsNormForward(a, w, s); });
      } else {
        run(LayerNormForwardArgs(),
            [](const auto& a, Workspace w, StreamHandle s) { return LayerNormForward(a, w, s); });
      }
      EXPECT_EQ(y.FirstDifference(block.y), -1) << "first wrong row";
    }
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
  cuda::Stream stream_ = std::move(cuda::Stream::Create(0)).value();
};

TEST_F(CudaLargeTensorsTest, RowCountsPastTwentyThreeAndTwentyFourBits) {
  for (int64_t rows : {8388607, 8388608, 8388609, 16777217}) {
    SCOPED_TRACE(rows);
    CheckForward(rows, 1009, 3, DType::kBF16);
  }
}

TEST_F(CudaLargeTensorsTest, RowCountsPastTheGridOfOneBlockARow) {
  for (int64_t rows : {65535, 65536, 70000, 300007}) {
    SCOPED_TRACE(rows);
    CheckForward(rows, 97, 300, DType::kF32);
    CheckForward(rows, 97, 8, DType::kF32);
  }
}

TEST_F(CudaLargeTensorsTest, MoreThanFourGiElements) {
  constexpr int64_t kHidden = 8192;
  constexpr int64_t kRows = (int64_t{1} << 32) / kHidden + 3;
  if (!HasFreeMemory(5 * kRows * kHidden)) GTEST_SKIP() << "needs 20 GiB of device memory";
  CheckForward(kRows, 61, kHidden, DType::kBF16);
}

TEST_F(CudaLargeTensorsTest, MoreThanFourGiElementsBackward) {
  constexpr int64_t kHidden = 16392;  // rows of clusters
  constexpr int64_t kRows = (int64_t{1} << 32) / kHidden + 5;
  constexpr int64_t kBlockRows = 61;
  constexpr DType kDType = DType::kBF16;
  if (!HasFreeMemory(8 * kRows * kHidden)) GTEST_SKIP() << "needs 32 GiB of device memory";
  const size_t row_bytes = kHidden * 2;
  RowBackwardCase problem;
  problem.op = Op::kLayerNorm;
  problem.rows = kBlockRows;
  problem.hidden_size = kHidden;
  problem.dtypes = {kDType, DType::kF32};
  problem.statistics = SavedStatistics::kRecomputed;
  problem.x = MakeData(DataKind::kNormal, kBlockRows, kHidden, kDType, 72);
  problem.dy = MakeData(DataKind::kNormal, kBlockRows, kHidden, kDType, 73);
  RunAndCheck(*runner_, problem);
  const RowBackwardOutputs block = RunCase(*runner_, problem);

  const RepeatedRows x(stream_, ToBytes(kDType, problem.x), row_bytes, kRows);
  const RepeatedRows dy(stream_, ToBytes(kDType, problem.dy), row_bytes, kRows);
  const RepeatedRows dx(stream_, row_bytes, kRows);
  const RepeatedRows dweight(stream_, kHidden * 4, 1);
  const RepeatedRows dbias(stream_, kHidden * 4, 1);
  LayerNormBackwardArgs args;
  args.x = x.data();
  args.dy = dy.data();
  args.dx = dx.data();
  args.dweight = dweight.data();
  args.dbias = dbias.data();
  args.rows = kRows;
  args.hidden_size = kHidden;
  args.dtype = kDType;
  args.weight_dtype = DType::kF32;
  args.eps = kEps;
  const size_t workspace_bytes = LayerNormBackwardWorkspaceBytes(args);
  Result<cuda::DeviceBuffer> workspace = cuda::DeviceBuffer::Allocate(workspace_bytes, 0);
  ASSERT_TRUE(workspace.ok());
  Finish(LayerNormBackward(args, {workspace.value().data(), workspace_bytes},
                           stream_.view().handle()));
  EXPECT_EQ(dx.FirstDifference(block.dx), -1) << "first wrong row";

  // The same rows over and over: each counts as often as it occurs.
  const RowMoments moments = MomentsOf(problem.x, kBlockRows, kHidden);
  const std::vector<double> got_dweight = ToValues(DType::kF32, dweight.Read(0, 1));
  const std::vector<double> got_dbias = ToValues(DType::kF32, dbias.Read(0, 1));
  for (int64_t column = 0; column < kHidden; ++column) {
    double want_dweight = 0.0;
    double want_dbias = 0.0;
    double dweight_magnitude = 0.0;
    double dbias_magnitude = 0.0;
    for (int64_t row = 0; row < kBlockRows; ++row) {
      const auto at = static_cast<size_t>(row * kHidden + column);
      const auto r = static_cast<size_t>(row);
      const double copies = static_cast<double>((kRows - row - 1) / kBlockRows + 1);
      const double h = (problem.x[at] - moments.mean[r]) * moments.rstd[r];
      want_dbias += copies * problem.dy[at];
      want_dweight += copies * problem.dy[at] * h;
      dbias_magnitude += copies * std::abs(problem.dy[at]);
      dweight_magnitude += copies * std::abs(problem.dy[at] * h);
    }
    ASSERT_NEAR(got_dbias[static_cast<size_t>(column)], want_dbias, 1e-6 * dbias_magnitude)
        << column;
    ASSERT_NEAR(got_dweight[static_cast<size_t>(column)], want_dweight, 1e-6 * dweight_magnitude)
        << column;
  }
}

TEST_F(CudaLargeTensorsTest, GradientsOfTwentyMillionRowsDoNotStall) {
  constexpr int64_t kRows = 20000000;
  constexpr int64_t kHidden = 4;
  const std::vector<std::byte> ones = ToBytes(DType::kF32, std::vector<double>(kHidden, 1.0));
  const std::vector<double> values = MakeData(DataKind::kNormal, 1000, kHidden, DType::kF32, 74);
  const RepeatedRows x(stream_, ToBytes(DType::kF32, values), kHidden * 4, kRows);
  const RepeatedRows dy(stream_, ones, kHidden * 4, kRows);
  const RepeatedRows dx(stream_, kHidden * 4, kRows);
  const RepeatedRows dbias(stream_, kHidden * 4, 1);
  LayerNormBackwardArgs args;
  args.x = x.data();
  args.dy = dy.data();
  args.dx = dx.data();
  args.dbias = dbias.data();
  args.rows = kRows;
  args.hidden_size = kHidden;
  args.eps = kEps;
  const size_t workspace_bytes = LayerNormBackwardWorkspaceBytes(args);
  Result<cuda::DeviceBuffer> workspace = cuda::DeviceBuffer::Allocate(workspace_bytes, 0);
  ASSERT_TRUE(workspace.ok());
  Finish(LayerNormBackward(args, {workspace.value().data(), workspace_bytes},
                           stream_.view().handle()));
  EXPECT_EQ(ToValues(DType::kF32, dbias.Read(0, 1)),
            std::vector<double>(kHidden, static_cast<double>(kRows)));
}

}  // namespace
}  // namespace norm::testing
