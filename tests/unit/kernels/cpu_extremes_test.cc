// What the CPU backend adds to the contract: f64 arithmetic, so that no finite input overflows or
// underflows on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/batch_norm_case.h"
#include "tests/support/cpu_runner.h"
#include "tests/support/row_norm_case.h"

namespace norm::testing {
namespace {

class CpuExtremesTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeCpuRunner(2);
};

TEST_P(CpuExtremesTest, SquaresOfHugeAndTinyValuesAreExact) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (double scale : {1e37, 3e30, 1e-30, 1e-37}) {
      for (int64_t hidden_size : {5, 300}) {
        SCOPED_TRACE(scale);
        RowForwardCase forward;
        forward.op = op;
        forward.rows = 3;
        forward.hidden_size = hidden_size;
        forward.dtypes = GetParam();
        forward.eps = 0.0;
        forward.x = MakeNormal(3 * hidden_size, 0.0, scale, GetParam().dtype, 91);
        const RowForwardOutputs out = RunCase(*runner_, forward);
        ASSERT_TRUE(out.status.ok()) << out.status.message();
        RowForwardCase scaled = forward;
        RunAndCheck(*runner_, scaled);
      }
    }
  }
}

TEST_P(CpuExtremesTest, OppositeHugeValuesHaveAFiniteDeviation) {
  RowForwardCase forward;
  forward.op = Op::kLayerNorm;
  forward.rows = 1;
  forward.hidden_size = 4;
  forward.dtypes = GetParam();
  const double huge = reference::RoundTo(FormatOf(GetParam().dtype), 3e38);
  forward.x = {huge, -huge, huge, -huge};
  EXPECT_THAT(ToValues(GetParam().dtype, RunCase(*runner_, forward).y),
              ::testing::ElementsAre(1, -1, 1, -1));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CpuExtremesTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kBF16, DType::kF32}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
