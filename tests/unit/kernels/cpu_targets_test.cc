// Every instruction set that the CPU code is compiled for gives right results, not only the best
// one of this machine.
#include <gtest/gtest.h>

#include "hwy/targets.h"
#include "tests/support/batch_norm_case.h"
#include "tests/support/cpu_runner.h"
#include "tests/support/row_norm_case.h"

namespace norm::testing {
namespace {

/// Makes one instruction set the chosen one while it lives.
class ChosenTarget {
 public:
  explicit ChosenTarget(int64_t target) { hwy::GetChosenTarget().Update(target); }
  ~ChosenTarget() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  ChosenTarget(const ChosenTarget&) = delete;
  ChosenTarget& operator=(const ChosenTarget&) = delete;
};

/// Those the kernels are compiled for and this machine has: the portable fallback, AVX2 and AVX-512.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets = {HWY_STATIC_TARGET};
  for (int64_t target : {HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) != 0) {
      targets.push_back(target);
    }
  }
  return targets;
}

class CpuTargetsTest : public ::testing::TestWithParam<int64_t> {
 protected:
  ChosenTarget chosen_{GetParam()};
  std::unique_ptr<NormRunner> runner_ = MakeCpuRunner(2);
};

TEST_P(CpuTargetsTest, RowNormsMatchReference) {
  for (Op op : {Op::kRmsNorm, Op::kLayerNorm}) {
    for (const DTypePair& dtypes : kDTypePairs) {
      for (int64_t hidden_size : {1, 3, 16, 17, 100, 1025}) {
        SCOPED_TRACE(OpName(op));
        SCOPED_TRACE(DTypePairName(dtypes));
        SCOPED_TRACE(hidden_size);
        RowForwardCase forward;
        forward.op = op;
        forward.rows = 9;
        forward.hidden_size = hidden_size;
        forward.dtypes = dtypes;
        forward.x = MakeNormal(9 * hidden_size, 0.5, 1.0, dtypes.dtype, 96);
        forward.weight = MakeNormal(hidden_size, 1.0, 0.5, dtypes.weight_dtype, 97);
        RunAndCheck(*runner_, forward, {1});
        forward.rounding = Rounding::kNormalizedFirst;
        RunAndCheck(*runner_, forward);
        for (int format = 1; format < kOutputFormatCount && dtypes.dtype != DType::kF64; ++format) {
          forward.output_format = static_cast<OutputFormat>(format);
          forward.rounding = Rounding::kOnce;
          RunAndCheck(*runner_, forward, {1});
          forward.rounding = Rounding::kNormalizedFirst;
          RunAndCheck(*runner_, forward);
        }

        RowBackwardCase backward;
        backward.op = op;
        backward.rows = 9;
        backward.hidden_size = hidden_size;
        backward.dtypes = dtypes;
        backward.x = forward.x;
        backward.dy = MakeNormal(9 * hidden_size, 0.0, 1.0, dtypes.dtype, 98);
        backward.weight = forward.weight;
        RunAndCheck(*runner_, backward, {1});
      }
    }
  }
}

TEST_P(CpuTargetsTest, BatchNormMatchesReference) {
  for (BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    for (const DTypePair& dtypes : kDTypePairs) {
      SCOPED_TRACE(DTypePairName(dtypes));
      BatchForwardCase forward;
      forward.shape = {3, 19, 35, layout};
      forward.dtypes = dtypes;
      forward.x = MakeNormal(3 * 19 * 35, 2.0, 1.0, dtypes.dtype, 99);
      RunAndCheck(*runner_, forward, {1});
      BatchBackwardCase backward;
      backward.shape = forward.shape;
      backward.dtypes = dtypes;
      backward.x = forward.x;
      backward.dy = MakeNormal(3 * 19 * 35, 0.0, 1.0, dtypes.dtype, 100);
      RunAndCheck(*runner_, backward, {1});
    }
  }
}

TEST_P(CpuTargetsTest, NarrowResultsRoundTiesToEvenAndOverflowToInfinity) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const reference::Format format = FormatOf(dtype);
    RowForwardCase problem;
    problem.rows = 1;
    problem.eps = 0.0;
    problem.dtypes = {dtype, DType::kF32};
    // x = 1 and eps = 0 make y the f32 weight itself, rounded once.
    const uint64_t largest = dtype == DType::kF16 ? 0x7BFF : 0x7F7F;
    for (uint64_t bits = 0; bits < largest; bits += 13) {
      const double low = reference::DecodeBits(format, bits);
      problem.weight.push_back((low + reference::DecodeBits(format, bits + 1)) / 2);
    }
    const double past = reference::DecodeBits(format, largest) + reference::Ulp(format, 40000.0);
    problem.weight.push_back(dtype == DType::kF16 ? past : 3.4e38);
    for (double& weight : problem.weight) {
      weight = reference::RoundTo(reference::Format::kF32, weight);
    }
    problem.hidden_size = static_cast<int64_t>(problem.weight.size());
    problem.x.assign(problem.weight.size(), 1.0);
    EXPECT_EQ(RunCase(*runner_, problem).y, ToBytes(dtype, problem.weight));
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuTargetsTest, ::testing::ValuesIn(Targets()),
                         [](const auto& named) {
                           return std::string(hwy::TargetName(named.param));
                         });

}  // namespace
}  // namespace norm::testing
