// Row-norm backward of rows that pass through rings in shared memory, over one block or a cluster:
// against the oracle with every option, and by their bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

class CudaLongRowsBackwardTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  static RowBackwardCase MakeCase(Op op, int64_t rows, int64_t hidden_size, uint64_t seed,
                                  DataKind kind = DataKind::kNormal) {
    RowBackwardCase problem;
    problem.op = op;
    problem.rows = rows;
    problem.hidden_size = hidden_size;
    problem.dtypes = GetParam();
    problem.x = MakeData(kind, rows, hidden_size, GetParam().dtype, seed);
    problem.dy = MakeData(DataKind::kNormal, rows, hidden_size, GetParam().dtype, seed + 1);
    problem.weight = MakeNormal(hidden_size, 1.0, 0.5, GetParam().weight_dtype, seed + 2);
    return problem;
  }
  static void AddResidual(RowBackwardCase& problem, uint64_t seed) {
    problem.dresidual_sum =
        MakeData(DataKind::kNormal, problem.rows, problem.hidden_size, problem.dtypes.dtype, seed);
  }
  /// Rows that repeat those of `few`.
  static RowBackwardCase Repeated(const RowBackwardCase& few, int64_t rows) {
    RowBackwardCase many = few;
    many.rows = rows;
    for (std::vector<double>* values : {&many.x, &many.dy, &many.dresidual_sum}) {
      const std::vector<double> block = *values;
      if (block.empty()) continue;
      values->resize(static_cast<size_t>(rows * few.hidden_size));
      for (size_t i = 0; i < values->size(); ++i) (*values)[i] = block[i % block.size()];
    }
    return many;
  }
  static std::ptrdiff_t RowBytes(const RowBackwardCase& problem) {
    return problem.hidden_size * static_cast<std::ptrdiff_t>(DTypeSize(problem.dtypes.dtype));
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

// Blocks and clusters of 2, 4, 8 and 16, with threads and granules left over.
constexpr int64_t kHiddenSizes[] = {8200,  12288,  16384,  16392, 33800,
                                    65536, 100000, 150000, 262144};

TEST_P(CudaLongRowsBackwardTest, EverySizeMatchesTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : kHiddenSizes) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << hidden_size);
      RunAndCheck(*runner_, MakeCase(op, 3, hidden_size, 301));
    }
  }
}

TEST_P(CudaLongRowsBackwardTest, EveryOptionMatchesTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : {12296, 20000}) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << hidden_size);
      RowBackwardCase problem = MakeCase(op, 3, hidden_size, 311);
      problem.statistics = SavedStatistics::kRecomputed;
      RunAndCheck(*runner_, problem);
      AddResidual(problem, 314);
      RunAndCheck(*runner_, problem);
      if (op == Op::kRmsNorm) {
        problem.weight_offset = 1.0;
        RunAndCheck(*runner_, problem);
        problem.weight_offset = 0.0;
      }
      problem.weight.clear();
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(CudaLongRowsBackwardTest, EveryKindOfDataMatchesTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (DataKind kind : {DataKind::kLargeMean, DataKind::kSumsPastF16, DataKind::kUniform}) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << " " << DataKindName(kind));
      RunAndCheck(*runner_, MakeCase(op, 3, 16392, 321, kind));
    }
  }
}

// More rows than one partial row of dweight adds up: 40 of each of at most 30 clusters.
TEST_P(CudaLongRowsBackwardTest, GradientsOfManyRowsMatchTheReference) {
  RunAndCheck(*runner_, Repeated(MakeCase(Op::kLayerNorm, 11, 33800, 331), 1301));
}

TEST_P(CudaLongRowsBackwardTest, ARowHasTheSameBitsAloneAndAmongMany) {
  constexpr int64_t kPeriod = 7;
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (bool has_residual : {false, true}) {
      SCOPED_TRACE(::testing::Message() << OpName(op) << has_residual);
      RowBackwardCase few = MakeCase(op, kPeriod, 16392, 341);
      if (has_residual) AddResidual(few, 344);
      const std::vector<std::byte> alone = RunCase(*runner_, few).dx;
      const RowBackwardCase repeated = Repeated(few, 1003);
      const RowBackwardOutputs many = RunCase(*runner_, repeated);
      ASSERT_TRUE(many.status.ok()) << many.status.message();
      for (int64_t row = 0; row < repeated.rows; ++row) {
        const std::ptrdiff_t bytes = RowBytes(few);
        const auto of_many = many.dx.begin() + row * bytes;
        ASSERT_TRUE(std::equal(of_many, of_many + bytes, alone.begin() + row % kPeriod * bytes))
            << "row " << row;
      }
      const RowBackwardOutputs again = RunCase(*runner_, repeated);
      EXPECT_EQ(again.dweight, many.dweight);
      EXPECT_EQ(again.dbias, many.dbias);
    }
  }
}

TEST_P(CudaLongRowsBackwardTest, AddressesDoNotChangeBits) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (int64_t hidden_size : {8200, 33800}) {
      RowBackwardCase problem = MakeCase(op, 3, hidden_size, 351);
      for (bool has_residual : {false, true}) {
        if (has_residual) AddResidual(problem, 354);
        const RowBackwardOutputs aligned = RunCase(*runner_, problem);
        for (size_t misaligned : {1, 2, 7}) {
          SCOPED_TRACE(::testing::Message()
                       << OpName(op) << " " << hidden_size << " " << misaligned);
          const RowBackwardOutputs moved = RunCase(*runner_, problem, {misaligned});
          EXPECT_EQ(moved.dx, aligned.dx);
          EXPECT_EQ(moved.dweight, aligned.dweight);
          EXPECT_EQ(moved.dbias, aligned.dbias);
        }
      }
    }
  }
}

// Rows whose sums leave f32, one after another and between others; NaN stays in its row.
TEST_P(CudaLongRowsBackwardTest, RowsOutOfRangeDoNotDisturbOthers) {
  constexpr int64_t kRows = 12;
  constexpr int64_t kHidden = 33800;
  const bool is_f16 = GetParam().dtype == DType::kF16;
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    SCOPED_TRACE(OpName(op));
    RowBackwardCase problem = MakeCase(op, kRows, kHidden, 361);
    problem.eps = 0.0;
    if (!is_f16) {
      const double scales[kRows] = {1, 1e12, 1e10, 1e-12, 1, 1e12, 1, 1e-9, 1e12, 1e12, 1e-12, 1};
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<double> values =
            MakeNormal(kHidden, 0.0, scales[row], GetParam().dtype, 370 + row);
        std::copy(values.begin(), values.end(), problem.x.begin() + row * kHidden);
      }
    }
    RunAndCheck(*runner_, problem);

    const std::vector<std::byte> clean = RunCase(*runner_, problem).dx;
    problem.dy[static_cast<size_t>(4 * kHidden + 5)] = std::nan("");
    problem.dy[static_cast<size_t>(6 * kHidden + kHidden - 1)] = std::nan("");
    const std::vector<std::byte> dirty = RunCase(*runner_, problem).dx;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = row * RowBytes(problem);
      const bool equal = std::equal(
          clean.begin() + begin, clean.begin() + begin + RowBytes(problem), dirty.begin() + begin);
      EXPECT_EQ(equal, row != 4 && row != 6) << "row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaLongRowsBackwardTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kF16, DType::kF16},
                                           DTypePair{DType::kBF16, DType::kBF16},
                                           DTypePair{DType::kBF16, DType::kF32}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
