// Outputs in place of inputs, where the contract allows it, give the bits they give apart.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/support/host_tensor.h"
#include "tests/support/norm_runner.h"
#include "tests/support/tensor_data.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

constexpr int64_t kRows = 70;
/// Fused sums, and the column kernel after wide and after streaming rows.
constexpr int64_t kHiddenSizes[] = {64, 4096, 9000, 16392, 20001};

class CudaAliasingTest : public ::testing::TestWithParam<int64_t> {
 protected:
  std::vector<std::byte> MakeTensor(uint64_t seed) const {
    return ToBytes(DType::kF32, MakeData(DataKind::kNormal, kRows, GetParam(), DType::kF32, seed));
  }
  std::vector<std::byte> MakeGradient() const { return OutputBytes(DType::kF32, GetParam()); }

  std::unique_ptr<NormRunner> runner_ = MakeTestRunner();
};

TEST_P(CudaAliasingTest, ResidualForwardInPlace) {
  std::vector<std::byte> x = MakeTensor(91);
  std::vector<std::byte> residual = MakeTensor(92);
  std::vector<std::byte> y = x;
  std::vector<std::byte> sum = x;
  LayerNormForwardArgs args;
  args.x = x.data();
  args.residual = residual.data();
  args.y = y.data();
  args.residual_sum = sum.data();
  args.rows = kRows;
  args.hidden_size = GetParam();
  ASSERT_TRUE(runner_->Run(args).ok());
  args.y = x.data();
  args.residual_sum = residual.data();
  ASSERT_TRUE(runner_->Run(args).ok());
  EXPECT_EQ(x, y);
  EXPECT_EQ(residual, sum);
}

TEST_P(CudaAliasingTest, FewRowsForwardInPlace) {
  std::vector<std::byte> x = MakeTensor(96);
  std::vector<std::byte> y = x;
  LayerNormForwardArgs args;
  args.x = x.data();
  args.y = y.data();
  args.rows = 9;
  args.hidden_size = GetParam();
  ASSERT_TRUE(runner_->Run(args).ok());
  EXPECT_NE(x, y);
  args.y = x.data();
  ASSERT_TRUE(runner_->Run(args).ok());
  EXPECT_EQ(x, y);
}

TEST_P(CudaAliasingTest, BackwardInPlaceOfEachInput) {
  const std::vector<std::byte> x = MakeTensor(93);
  const std::vector<std::byte> dy = MakeTensor(94);
  const std::vector<std::byte> dresidual = MakeTensor(95);
  std::vector<std::byte> dx = x;
  std::vector<std::byte> dweight = MakeGradient();
  std::vector<std::byte> dbias = MakeGradient();
  LayerNormBackwardArgs args;
  args.x = x.data();
  args.dy = dy.data();
  args.dresidual_sum = dresidual.data();
  args.dx = dx.data();
  args.dweight = dweight.data();
  args.dbias = dbias.data();
  args.rows = kRows;
  args.hidden_size = GetParam();
  ASSERT_TRUE(runner_->Run(args).ok());
  for (int replaced = 0; replaced < 3; ++replaced) {
    SCOPED_TRACE(replaced);
    std::vector<std::byte> inputs[] = {x, dy, dresidual};
    std::vector<std::byte> in_place_dweight = MakeGradient();
    std::vector<std::byte> in_place_dbias = MakeGradient();
    args.x = inputs[0].data();
    args.dy = inputs[1].data();
    args.dresidual_sum = inputs[2].data();
    args.dx = inputs[replaced].data();
    args.dweight = in_place_dweight.data();
    args.dbias = in_place_dbias.data();
    ASSERT_TRUE(runner_->Run(args).ok());
    EXPECT_EQ(inputs[replaced], dx);
    EXPECT_EQ(in_place_dweight, dweight);
    EXPECT_EQ(in_place_dbias, dbias);
  }
}

INSTANTIATE_TEST_SUITE_P(Hidden, CudaAliasingTest, ::testing::ValuesIn(kHiddenSizes),
                         [](const auto& named) { return std::to_string(named.param); });

}  // namespace
}  // namespace norm::testing
