// f32 sums that leave their range are taken again in f64: rows of huge or tiny values are
// normalized like any other, also with eps = 0.
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

INSTANTIATE_TEST_SUITE_P(DTypes, CudaExtremesTest,
                         ::testing::Values(DTypePair{DType::kF32, DType::kF32},
                                           DTypePair{DType::kBF16, DType::kF32}),
                         [](const auto& named) { return DTypePairName(named.param); });

}  // namespace
}  // namespace norm::testing
