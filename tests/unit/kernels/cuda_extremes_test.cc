// f32 sums that leave their range are taken again in f64: rows of huge or tiny values are
// normalized like any other, also with eps = 0, and so are their gradients.
#include <gtest/gtest.h>

#include "tests/support/row_norm_case.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

class CudaExtremesTest : public ::testing::TestWithParam<DTypePair> {
 protected:
  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(CudaExtremesTest, HugeAndTinyRowsMatchTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (double scale : {1e37, 3e30, 1e-30, 1e-37}) {
      // Warp, block and streaming rows.
      for (int64_t hidden_size : {5, 300, 4100, 16400}) {
        SCOPED_TRACE(::testing::Message() << OpName(op) << " " << scale << " " << hidden_size);
        RowForwardCase forward;
        forward.op = op;
        forward.rows = 3;
        forward.hidden_size = hidden_size;
        forward.dtypes = GetParam();
        forward.eps = 0.0;
        forward.x = MakeNormal(3 * hidden_size, 0.0, scale, GetParam().dtype, 91);
        RunAndCheck(*runner_, forward);
      }
    }
  }
}

TEST_P(CudaExtremesTest, GradientsOfHugeAndTinyRowsMatchTheReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (double scale : {3e30, 1e-30}) {
      // Lanes, block, cluster.
      for (int64_t hidden_size : {5, 300, 1025, 4104, 16400}) {
        for (SavedStatistics statistics : {SavedStatistics::kGiven, SavedStatistics::kRecomputed}) {
          SCOPED_TRACE(::testing::Message() << OpName(op) << " " << scale << " " << hidden_size);
          RowBackwardCase backward;
          backward.op = op;
          backward.rows = 3;
          backward.hidden_size = hidden_size;
          backward.dtypes = GetParam();
          backward.eps = 0.0;
          backward.statistics = statistics;
          backward.x = MakeNormal(3 * hidden_size, 0.0, scale, GetParam().dtype, 92);
          backward.dy = MakeNormal(3 * hidden_size, 0.0, 1.0, GetParam().dtype, 93);
          backward.weight = MakeNormal(hidden_size, 1.0, 0.5, GetParam().weight_dtype, 94);
          // Ordinary rows beside them keep their own way.
          for (int64_t i = 0; i < hidden_size; ++i) {
            backward.x[static_cast<size_t>(hidden_size + i)] =
                backward.dy[static_cast<size_t>(2 * hidden_size + i)];
          }
          RunAndCheck(*runner_, backward);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaExtremesTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kBF16, DType::kF32}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
