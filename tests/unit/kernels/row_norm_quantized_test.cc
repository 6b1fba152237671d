// Row norms forward with y in one byte per element: every format against the oracle, and the values
// where formats differ: ties, saturation, zeros, tiny and huge rows, NaN and infinity.
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
constexpr OutputFormat kPerRowFormats[] = {OutputFormat::kF8E4M3PerRow, OutputFormat::kInt8PerRow};
constexpr Op kRowOps[] = {Op::kRmsNorm, Op::kLayerNorm};
constexpr DTypePair kF32Pair = {DType::kF32, DType::kF32};

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

/// RMSNorm of ones without eps: y is the weight itself.
RowForwardCase WeightsAsY(OutputFormat format, const std::vector<double>& weight, DType dtype) {
  RowForwardCase problem;
  problem.output_format = format;
  problem.dtypes = {dtype, DType::kF32};
  problem.rows = 2;
  problem.hidden_size = static_cast<int64_t>(weight.size());
  problem.eps = 0.0;
  problem.x.assign(2 * weight.size(), 1.0);
  problem.weight = weight;
  return problem;
}

/// The codes of `y` in each of the two rows of WeightsAsY.
std::vector<uint8_t> ExpectedCodes(ByteFormat format, const std::vector<double>& y, double scale) {
  std::vector<uint8_t> codes;
  for (int row = 0; row < 2; ++row) {
    for (double value : y) {
      codes.push_back(reference::Quantize(format, value, scale));
    }
  }
  return codes;
}

/// Every tie between neighbours, the f32 numbers beside it, and the neighbours, of both signs.
std::vector<double> TiesOf(ByteFormat format) {
  std::vector<double> values;
  const int last = static_cast<int>(reference::EncodeByte(format, kInfinity));
  for (int code = 0; code < last; ++code) {
    const double low = reference::DecodeByte(format, static_cast<uint8_t>(code));
    const double high = reference::DecodeByte(format, static_cast<uint8_t>(code + 1));
    const float middle = static_cast<float>((low + high) / 2);
    for (double value :
         {low, static_cast<double>(std::nextafter(middle, 0.0F)), static_cast<double>(middle),
          static_cast<double>(std::nextafter(middle, 1e9F)), high}) {
      values.push_back(value);
      // weight + weight_offset is never -0.
      values.push_back(value == 0.0 ? value : -value);
    }
  }
  return values;
}

class QuantizedValuesTest : public ::testing::Test {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_F(QuantizedValuesTest, RoundTiesToEven) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (OutputFormat format : kFormats) {
      SCOPED_TRACE(OutputFormatName(format));
      // Holds the largest value of the format: the scale of a row is 1.
      const std::vector<double> weight = TiesOf(ByteFormatOf(format));
      const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, dtype));
      ASSERT_TRUE(out.status.ok()) << out.status.message();
      EXPECT_EQ(Codes(out), ExpectedCodes(ByteFormatOf(format), weight, 1.0));
      for (double scale : Scales(out)) {
        EXPECT_EQ(scale, 1.0);
      }
    }
  }
}

TEST_F(QuantizedValuesTest, AreRoundedOnceFromF32) {
  // In bf16 the first is a tie, which would then round down.
  const std::vector<double> weight = {1.0625 + 0x1p-12, 1.0, 448.0};
  for (OutputFormat format : {OutputFormat::kF8E4M3, OutputFormat::kF8E4M3PerRow}) {
    const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kBF16));
    EXPECT_EQ(Codes(out), (std::vector<uint8_t>{0x39, 0x38, 0x7E, 0x39, 0x38, 0x7E}));
  }
}

TEST_F(QuantizedValuesTest, SaturateWithAStaticScaleAndKeepNan) {
  const std::vector<double> weight = {447.0,     449.0,      463.0, 465.0, 1e6, -1e6,  3e38,
                                      kInfinity, -kInfinity, kNan,  1e-10, 0.0, -1e-40};
  RowForwardCase problem = WeightsAsY(OutputFormat::kF8E4M3, weight, DType::kF32);
  const std::vector<uint8_t> row = {0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E,
                                    0x7E, 0xFE, 0x7F, 0x00, 0x00, 0x80};
  std::vector<uint8_t> expected = row;
  expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_EQ(Codes(RunCase(*runner_, problem)), expected);
  problem.y_scale = 4.0F;
  EXPECT_EQ(Codes(RunCase(*runner_, problem)), ExpectedCodes(ByteFormat::kF8E4M3, weight, 4.0));
}

TEST_F(QuantizedValuesTest, TakeStaticScalesToTheEndsOfTheirRange) {
  for (float scale : {0x1p-126F, 0x1p-100F, 0x1p100F, 0x1p126F}) {
    SCOPED_TRACE(scale);
    const double s = static_cast<double>(scale);
    const std::vector<double> weight = {s, -s, 1.5 * s, 3.0, 0.0};
    RowForwardCase problem = WeightsAsY(OutputFormat::kF8E4M3, weight, DType::kF32);
    problem.y_scale = scale;
    EXPECT_EQ(Codes(RunCase(*runner_, problem)), ExpectedCodes(ByteFormat::kF8E4M3, weight, s));
  }
}

TEST_F(QuantizedValuesTest, RowsFromTheSmallestToTheLargestNumbers) {
  // In units of the largest of the row.
  const std::vector<double> shares = {1.0, -0.5, 0.25, 3.0 / 7.0, 0.1, -0.01, 0.0, 0.97};
  for (OutputFormat format : kPerRowFormats) {
    for (double largest :
         {3.4e38, 1e30, 1e-30, 448.0 * 0x1p-126, 6e-36, 2e-36, 1e-38, 1e-40, 0x1p-149, 0.0}) {
      SCOPED_TRACE(OutputFormatName(format));
      SCOPED_TRACE(largest);
      std::vector<double> weight;
      for (double share : shares) {
        weight.push_back(reference::RoundTo(reference::Format::kF32, share * largest));
      }
      RunAndCheck(*runner_, WeightsAsY(format, weight, DType::kF32));
      const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kF32));
      const ByteFormat bytes = ByteFormatOf(format);
      const double scale =
          reference::RowScale(bytes, weight, 0, static_cast<int64_t>(weight.size()));
      EXPECT_EQ(scale == 0.0, largest < reference::LargestValue(bytes) * 0x1p-126);
      EXPECT_EQ(Scales(out), (std::vector<double>{scale, scale}));
      const uint8_t first = reference::EncodeByte(bytes, scale == 0.0 ? 0.0 : kInfinity);
      EXPECT_EQ(Codes(out)[0], first);
    }
  }
}

TEST_F(QuantizedValuesTest, RowsWithAnInfiniteYHaveAnInfiniteScale) {
  for (OutputFormat format : kPerRowFormats) {
    const std::vector<double> weight = {1.0, kInfinity, -2.0};
    const RowForwardOutputs out = RunCase(*runner_, WeightsAsY(format, weight, DType::kF32));
    const uint8_t nan = format == OutputFormat::kF8E4M3PerRow ? 0x7F : 0;
    EXPECT_EQ(Codes(out), std::vector<uint8_t>(6, nan));
    EXPECT_EQ(Scales(out), (std::vector<double>{kInfinity, kInfinity}));
  }
}

TEST_F(QuantizedValuesTest, NoRowsWriteNothing) {
  for (OutputFormat format : kFormats) {
    RowForwardCase problem;
    problem.hidden_size = 8;
    problem.dtypes = kF32Pair;
    problem.output_format = format;
    EXPECT_TRUE(RunCase(*runner_, problem).status.ok());
  }
}

}  // namespace
}  // namespace norm::testing
