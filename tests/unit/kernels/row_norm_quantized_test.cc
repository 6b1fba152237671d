// Row norms forward with y in one byte per element, against the oracle: every format, op, dtype and
// data kind, bits, and memory shared with the residual sum. Exact values: see
// row_norm_quantized_values_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/quantized_output.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

using reference::ByteFormat;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr OutputFormat kFormats[] = {OutputFormat::kF8E4M3, OutputFormat::kF8E4M3PerRow,
                                     OutputFormat::kInt8PerRow};
constexpr Op kRowOps[] = {Op::kRmsNorm, Op::kLayerNorm};

std::vector<uint8_t> Codes(const RowForwardOutputs& out) {
  std::vector<uint8_t> codes(out.y.size());
  std::transform(out.y.begin(), out.y.end(), codes.begin(),
                 [](std::byte byte) { return std::to_integer<uint8_t>(byte); });
  return codes;
}

std::vector<double> Scales(const RowForwardOutputs& out) {
  return ToValues(DType::kF32, out.row_scale);
}

struct FormatPoint {
  OutputFormat format;
  DTypePair dtypes;
};

std::vector<FormatPoint> FormatPoints() {
  std::vector<FormatPoint> points;
  for (OutputFormat format : kFormats) {
    for (const DTypePair& dtypes : kDTypePairs) {
      if (dtypes.dtype != DType::kF64) {
        points.push_back({format, dtypes});
      }
    }
  }
  return points;
}

class QuantizedRowNormTest : public ::testing::TestWithParam<FormatPoint> {
 protected:
  static RowForwardCase MakeCase(Op op, int64_t rows, int64_t hidden_size, DataKind kind) {
    RowForwardCase problem;
    problem.op = op;
    problem.rows = rows;
    problem.hidden_size = hidden_size;
    problem.dtypes = GetParam().dtypes;
    problem.output_format = GetParam().format;
    problem.x = MakeData(kind, rows, hidden_size, problem.dtypes.dtype, 31);
    if (problem.output_format == OutputFormat::kF8E4M3) {
      problem.y_scale = 0.0123F;
    }
    return problem;
  }
  static void AddParameters(RowForwardCase& problem) {
    const DType dtype = problem.dtypes.weight_dtype;
    problem.weight = MakeNormal(problem.hidden_size, 1.0, 0.5, dtype, 32);
    if (problem.op == Op::kLayerNorm) {
      problem.bias = MakeNormal(problem.hidden_size, 0.0, 0.5, dtype, 33);
    }
  }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(QuantizedRowNormTest, MatchesReference) {
  for (Op op : kRowOps) {
    for (int64_t hidden_size :
         {1,    3,    8,    17,   31,   64,   100,  128,  256,   257,   769,   1000, 1023,
          1024, 1025, 2048, 3000, 4096, 4097, 8192, 8200, 12289, 16384, 20000, 65536}) {
      SCOPED_TRACE(OpName(op));
      SCOPED_TRACE(hidden_size);
      const int64_t rows = hidden_size > 5000 ? 2 : 5;
      RowForwardCase problem = MakeCase(op, rows, hidden_size, DataKind::kNormal);
      RunAndCheck(*runner_, problem);
      AddParameters(problem);
      RunAndCheck(*runner_, problem);
      problem.residual = MakeData(DataKind::kNormal, rows, hidden_size, problem.dtypes.dtype, 34);
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(QuantizedRowNormTest, MatchesReferenceWithManyShortRows) {
  for (Op op : kRowOps) {
    for (int64_t hidden_size : {1, 5, 16, 130}) {
      SCOPED_TRACE(hidden_size);
      RowForwardCase problem = MakeCase(op, 701, hidden_size, DataKind::kNormal);
      AddParameters(problem);
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(QuantizedRowNormTest, MatchesReferenceInBothRoundingOrders) {
  for (Op op : kRowOps) {
    for (int64_t hidden_size : {100, 1024, 5000}) {
      SCOPED_TRACE(OpName(op));
      SCOPED_TRACE(hidden_size);
      RowForwardCase problem = MakeCase(op, 4, hidden_size, DataKind::kUniform);
      AddParameters(problem);
      problem.rounding = Rounding::kNormalizedFirst;
      RunAndCheck(*runner_, problem);
      problem.rounding = Rounding::kOnce;
      if (op == Op::kRmsNorm) {
        problem.weight_offset = 1.0;
      }
      RunAndCheck(*runner_, problem);
    }
  }
}

TEST_P(QuantizedRowNormTest, MatchesReferenceForDifficultData) {
  for (Op op : kRowOps) {
    for (DataKind kind : kDataKinds) {
      // Deviations of constant rows are rounding errors: see ConstantRowsAreCloseToZero.
      if (op == Op::kLayerNorm && kind == DataKind::kConstantRows) {
        continue;
      }
      for (int64_t hidden_size : {3, 100, 4099}) {
        SCOPED_TRACE(OpName(op));
        SCOPED_TRACE(DataKindName(kind));
        SCOPED_TRACE(hidden_size);
        RowForwardCase problem = MakeCase(op, 5, hidden_size, kind);
        RunAndCheck(*runner_, problem);
        AddParameters(problem);
        RunAndCheck(*runner_, problem);
      }
    }
  }
}

TEST_P(QuantizedRowNormTest, ConstantRowsAreCloseToZero) {
  const RowForwardCase problem = MakeCase(Op::kLayerNorm, 5, 1000, DataKind::kConstantRows);
  const RowForwardOutputs out = RunCase(*runner_, problem);
  ASSERT_TRUE(out.status.ok()) << out.status.message();
  const std::vector<double> scales = Scales(out);
  const std::vector<uint8_t> codes = Codes(out);
  for (size_t i = 0; i < codes.size(); ++i) {
    const double scale = scales.empty() ? static_cast<double>(problem.y_scale) : scales[i / 1000];
    EXPECT_LE(
        std::fabs(reference::DecodeByte(ByteFormatOf(problem.output_format), codes[i])) * scale,
        5e-6);
  }
}

TEST_P(QuantizedRowNormTest, ARowAloneAtAnyAddressEqualsTheRowInABatch) {
  for (Op op : kRowOps) {
    for (int64_t hidden_size : {5, 33, 1024, 1200, 9000, 20000}) {
      SCOPED_TRACE(OpName(op));
      SCOPED_TRACE(hidden_size);
      constexpr int64_t kRows = 23;
      RowForwardCase all = MakeCase(op, kRows, hidden_size, DataKind::kNormal);
      AddParameters(all);
      const RowForwardOutputs batch = RunCase(*runner_, all);
      const RowForwardOutputs again = RunCase(*runner_, all);
      EXPECT_EQ(again.y, batch.y);
      EXPECT_EQ(again.row_scale, batch.row_scale);
      for (int64_t row : {int64_t{0}, int64_t{11}, kRows - 1}) {
        for (size_t misaligned : {0, 1, 4}) {
          RowForwardCase alone = all;
          alone.rows = 1;
          const auto begin = all.x.begin() + row * hidden_size;
          alone.x.assign(begin, begin + hidden_size);
          const RowForwardOutputs one = RunCase(*runner_, alone, {misaligned});
          EXPECT_TRUE(std::equal(one.y.begin(), one.y.end(), batch.y.begin() + row * hidden_size));
          EXPECT_TRUE(std::equal(one.row_scale.begin(), one.row_scale.end(),
                                 batch.row_scale.begin() + row * 4));
          EXPECT_TRUE(std::equal(one.rstd.begin(), one.rstd.end(), batch.rstd.begin() + row * 4));
        }
      }
    }
  }
}

// Rows whose statistics take more than one way through memory, too: the sum may replace x or the
// residual while the row is in use.
TEST_P(QuantizedRowNormTest, TheSumMayReplaceXOrTheResidual) {
  for (DataKind kind : {DataKind::kNormal, DataKind::kLargeMean}) {
    for (int64_t hidden_size : {24, 1000, 4096, 4097}) {
      SCOPED_TRACE(DataKindName(kind));
      SCOPED_TRACE(hidden_size);
      constexpr int64_t kRows = 5;
      const DTypePair dtypes = GetParam().dtypes;
      RowForwardCase problem = MakeCase(Op::kLayerNorm, kRows, hidden_size, kind);
      problem.residual = MakeNormal(kRows * hidden_size, 0.0, 1.0, dtypes.dtype, 35);
      const RowForwardOutputs apart = RunCase(*runner_, problem);
      for (bool replaces_x : {true, false}) {
        std::vector<std::byte> x = ToBytes(dtypes.dtype, problem.x);
        std::vector<std::byte> residual = ToBytes(dtypes.dtype, problem.residual);
        RowForwardOutputs out = apart;
        std::fill(out.y.begin(), out.y.end(), std::byte{0x5A});
        LayerNormForwardArgs args;
        args.x = x.data();
        args.residual = residual.data();
        args.residual_sum = replaces_x ? x.data() : residual.data();
        args.y = out.y.data();
        args.row_scale = out.row_scale.empty() ? nullptr : out.row_scale.data();
        args.rows = kRows;
        args.hidden_size = hidden_size;
        args.dtype = dtypes.dtype;
        args.weight_dtype = dtypes.weight_dtype;
        args.eps = problem.eps;
        args.output_format = problem.output_format;
        args.y_scale = problem.y_scale;
        const Status status = runner_->Run(args);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(out.y, apart.y);
        EXPECT_EQ(out.row_scale, apart.row_scale);
        EXPECT_EQ(replaces_x ? x : residual, apart.residual_sum);
      }
    }
  }
}

TEST_P(QuantizedRowNormTest, RowsOfZerosHaveScaleZero) {
  for (Op op : kRowOps) {
    for (int64_t hidden_size : {7, 512, 6000}) {
      RowForwardCase problem = MakeCase(op, 3, hidden_size, DataKind::kNormal);
      std::fill(problem.x.begin() + hidden_size, problem.x.begin() + 2 * hidden_size, 0.0);
      RunAndCheck(*runner_, problem);
      const RowForwardOutputs out = RunCase(*runner_, problem);
      const std::vector<uint8_t> codes = Codes(out);
      EXPECT_TRUE(std::all_of(codes.begin() + hidden_size, codes.begin() + 2 * hidden_size,
                              [](uint8_t code) { return code == 0; }));
      if (HasRowScale(problem.output_format)) {
        EXPECT_EQ(Scales(out)[1], 0.0);
      }
    }
  }
}

TEST_P(QuantizedRowNormTest, NanAndInfinityStayInTheirRow) {
  const ByteFormat format = ByteFormatOf(GetParam().format);
  for (Op op : kRowOps) {
    for (double bad : {kNan, kInfinity, -kInfinity}) {
      for (int64_t hidden_size : {7, 512, 6000, 20000}) {
        SCOPED_TRACE(OpName(op));
        SCOPED_TRACE(bad);
        SCOPED_TRACE(hidden_size);
        RowForwardCase problem = MakeCase(op, 3, hidden_size, DataKind::kNormal);
        const RowForwardOutputs clean = RunCase(*runner_, problem);
        problem.x[static_cast<size_t>(hidden_size + hidden_size / 2)] = bad;
        RunAndCheck(*runner_, problem);
        const RowForwardOutputs out = RunCase(*runner_, problem);
        for (int64_t row : {0, 2}) {
          const auto begin = out.y.begin() + row * hidden_size;
          EXPECT_TRUE(std::equal(begin, begin + hidden_size, clean.y.begin() + row * hidden_size));
        }
        if (HasRowScale(problem.output_format)) {
          EXPECT_TRUE(std::isnan(Scales(out)[1]));
          const uint8_t nan = format == ByteFormat::kF8E4M3 ? 0x7F : 0;
          const std::vector<uint8_t> codes = Codes(out);
          EXPECT_TRUE(std::all_of(codes.begin() + hidden_size, codes.begin() + 2 * hidden_size,
                                  [&](uint8_t code) { return code == nan; }));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedRowNormTest, ::testing::ValuesIn(FormatPoints()),
                         [](const auto& named) {
                           std::string name = OutputFormatName(named.param.format);
                           std::erase(name, '_');
                           return name + DTypePairName(named.param.dtypes);
                         });

}  // namespace
}  // namespace norm::testing
