// Row norms of rows that pass through shared memory in chunks, over several blocks: against the
// oracle with every option, and by their bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

class CudaLongRowsTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  /// A hidden size by the bytes of its row.
  static int64_t Hidden(int64_t row_bytes) {
    return row_bytes / static_cast<int64_t>(DTypeSize(GetParam().dtype));
  }
  static RowForwardCase MakeCase(Op op, int64_t rows, int64_t hidden_size, uint64_t seed) {
    RowForwardCase problem;
    problem.op = op;
    problem.rows = rows;
    problem.hidden_size = hidden_size;
    problem.dtypes = GetParam();
    problem.x = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, seed);
    problem.weight = MakeNormal(hidden_size, 1.0, 0.5, GetParam().weight_dtype, seed + 1);
    if (op == Op::kLayerNorm) {
      problem.bias = MakeNormal(hidden_size, 0.0, 0.5, GetParam().weight_dtype, seed + 2);
    }
    return problem;
  }
  /// Rows that repeat those of `few`.
  static RowForwardCase Repeated(const RowForwardCase& few, int64_t rows) {
    RowForwardCase many = few;
    many.rows = rows;
    const auto repeat = [&](std::vector<double>& values) {
      const std::vector<double> block = values;
      if (block.empty()) return;
      values.resize(static_cast<size_t>(rows * few.hidden_size));
      for (size_t i = 0; i < values.size(); ++i) values[i] = block[i % block.size()];
    };
    repeat(many.x);
    repeat(many.residual);
    return many;
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Clusters of 2, 4, 8 and 16 blocks, with and without granules left over, and longer rows.
constexpr int64_t kRowBytes[] = {65552,  131072, 131072 - 16, 262144,  300000,
                                 524304, 524288, 1 << 20,     1081344, 1081360};

TEST_P(CudaLongRowsTest, EverySizeMatchesTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t row_bytes : kRowBytes) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << row_bytes);
      RowForwardCase problem = MakeCase(op, 2, Hidden(row_bytes), 201);
      RunAndCheck(*runner_, problem);
      problem.residual = MakeData(DataKind::kNormal, 2, problem.hidden_size, GetParam().dtype, 204);
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(CudaLongRowsTest, EveryOptionMatchesTheReference) {
  const int64_t hidden_size = Hidden(131072);
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    SCOPED_TRACE(OpName(op));
    RowForwardCase problem = MakeCase(op, 3, hidden_size, 211);
    problem.rounding = Rounding::kNormalizedFirst;
    RunAndCheck(*runner_, problem);
    problem.rounding = Rounding::kOnce;
    if (op == Op::kRmsNorm) {
      problem.weight_offset = 1.0;
      RunAndCheck(*runner_, problem);
      problem.weight_offset = 0.0;
    }
    problem.bias.clear();
    RunAndCheck(*runner_, problem);
    problem.weight.clear();
    RunAndCheck(*runner_, problem);
  }
}

TEST_P(CudaLongRowsTest, EveryKindOfDataMatchesTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (DataKind kind : kDataKinds) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << DataKindName(kind));
      RowForwardCase problem = MakeCase(op, 3, Hidden(81920), 221);
      problem.x = MakeData(kind, 3, problem.hidden_size, GetParam().dtype, 222);
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(CudaLongRowsTest, AnOutlierCostsNoPrecision) {
  RowForwardCase problem = MakeCase(Op::kLayerNorm, 3, Hidden(131072), 231);
  // The first element of a thread, of a later chunk, and the last of the row.
  const std::vector<int64_t> places = {0, problem.hidden_size / 2, 2 * problem.hidden_size - 1};
  for (size_t row = 0; row < places.size(); ++row) {
    const size_t at = row * static_cast<size_t>(problem.hidden_size) +
                      static_cast<size_t>(places[row] % problem.hidden_size);
    problem.x[at] = 8192.0;
  }
  RunAndCheck(*runner_, problem);
}

// More rows than clusters take by turns: the others are claimed.
TEST_P(CudaLongRowsTest, ARowHasTheSameBitsAloneAndAmongMany) {
  constexpr int64_t kPeriod = 7;
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (bool has_residual : {false, true}) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << has_residual);
      RowForwardCase few = MakeCase(op, kPeriod, Hidden(65552), 241);
      if (has_residual) {
        few.residual = MakeData(DataKind::kNormal, kPeriod, few.hidden_size, GetParam().dtype, 244);
      }
      RunAndCheck(*runner_, few);
      const RowForwardOutputs alone = RunCase(*runner_, few);
      const RowForwardOutputs many = RunCase(*runner_, Repeated(few, 1003));
      const auto repeats = [](const std::vector<std::byte>& all,
                              const std::vector<std::byte>& block) {
        for (size_t at = 0; at < all.size(); at += block.size()) {
          const size_t bytes = std::min(block.size(), all.size() - at);
          const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
          if (!std::equal(begin, begin + static_cast<std::ptrdiff_t>(bytes), block.begin())) {
            return false;
          }
        }
        return true;
      };
      EXPECT_TRUE(repeats(many.y, alone.y));
      EXPECT_TRUE(repeats(many.residual_sum, alone.residual_sum));
      EXPECT_TRUE(repeats(many.rstd, alone.rstd));
      EXPECT_TRUE(repeats(many.mean, alone.mean));
    }
  }
}

TEST_P(CudaLongRowsTest, AddressesDoNotChangeBits) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t row_bytes : {int64_t{65552}, int64_t{524304}}) {
      RowForwardCase problem = MakeCase(op, 3, Hidden(row_bytes), 251);
      for (bool has_residual : {false, true}) {
        if (has_residual) {
          problem.residual =
              MakeData(DataKind::kNormal, 3, problem.hidden_size, GetParam().dtype, 254);
        }
        const RowForwardOutputs aligned = RunCase(*runner_, problem);
        for (size_t misaligned : {1, 2, 7}) {
          SCOPED_TRACE(::testing::Message() << OpName(op) << " " << row_bytes << " " << misaligned);
          const RowForwardOutputs moved = RunCase(*runner_, problem, {misaligned});
          EXPECT_EQ(moved.y, aligned.y);
          EXPECT_EQ(moved.residual_sum, aligned.residual_sum);
          EXPECT_EQ(moved.rstd, aligned.rstd);
          EXPECT_EQ(moved.mean, aligned.mean);
        }
      }
    }
  }
}

// Rows whose sums leave f32, one after another and between others; NaN stays in its row.
TEST_P(CudaLongRowsTest, RowsOutOfRangeDoNotDisturbOthers) {
  if (GetParam().dtype == DType::kF16) GTEST_SKIP() << "f16 squares fit f32";
  constexpr int64_t kRows = 12;
  const int64_t hidden_size = Hidden(131072);
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    SCOPED_TRACE(OpName(op));
    RowForwardCase problem = MakeCase(op, kRows, hidden_size, 261);
    problem.eps = 0.0;
    const double scales[kRows] = {1, 1e37, 3e30, 1e-37, 1, 1e37, 1, 1e-30, 1e37, 1e37, 1e-37, 1};
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<double> values =
          MakeNormal(hidden_size, 0.0, scales[row], GetParam().dtype, 270 + row);
      std::copy(values.begin(), values.end(), problem.x.begin() + row * hidden_size);
    }
    RunAndCheck(*runner_, problem);

    const std::vector<std::byte> clean = RunCase(*runner_, problem).y;
    problem.x[static_cast<size_t>(4 * hidden_size + 5)] = std::nan("");
    problem.x[static_cast<size_t>(6 * hidden_size + 5)] = std::numeric_limits<double>::infinity();
    const std::vector<std::byte> dirty = RunCase(*runner_, problem).y;
    const std::ptrdiff_t row_bytes =
        hidden_size * static_cast<std::ptrdiff_t>(DTypeSize(GetParam().dtype));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = row * row_bytes;
      const bool equal = std::equal(clean.begin() + begin, clean.begin() + begin + row_bytes,
                                    dirty.begin() + begin);
      EXPECT_EQ(equal, row != 4 && row != 6) << "row " << row;
    }
  }
}

TEST_P(CudaLongRowsTest, InPlaceEqualsApart) {
  RowForwardCase problem = MakeCase(Op::kLayerNorm, 70, Hidden(131072), 281);
  problem.residual = MakeData(DataKind::kNormal, 70, problem.hidden_size, GetParam().dtype, 284);
  problem.weight.clear();
  problem.bias.clear();
  const RowForwardOutputs apart = RunCase(*runner_, problem);
  ASSERT_TRUE(apart.status.ok()) << apart.status.message();
  for (bool swapped : {false, true}) {
    std::vector<std::byte> x = ToBytes(GetParam().dtype, problem.x);
    std::vector<std::byte> residual = ToBytes(GetParam().dtype, problem.residual);
    LayerNormForwardArgs args;
    args.x = x.data();
    args.residual = residual.data();
    args.y = swapped ? residual.data() : x.data();
    args.residual_sum = swapped ? x.data() : residual.data();
    args.rows = problem.rows;
    args.hidden_size = problem.hidden_size;
    args.dtype = GetParam().dtype;
    args.weight_dtype = GetParam().weight_dtype;
    args.eps = problem.eps;
    const Status status = runner_->Run(args);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(swapped ? residual : x, apart.y);
    EXPECT_EQ(swapped ? x : residual, apart.residual_sum);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaLongRowsTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kF16, DType::kF16},
                                           DTypePair{DType::kBF16, DType::kBF16},
                                           DTypePair{DType::kBF16, DType::kF32}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
