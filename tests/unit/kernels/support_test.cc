// The tools that the kernel tests judge with: they must fail where they should.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/norm_runner.h"
#include "tests/support/shape_file.h"
#include "tests/support/tensor_data.h"
#include "tests/support/tolerance.h"

namespace norm::testing {
namespace {

/// A backend over host memory whose "kernel" is any function.
class ScriptedRunner : public NormRunner {
 public:
  using Script = void (*)(const RmsNormForwardArgs&);
  explicit ScriptedRunner(Script script) : script_(script) {}
  std::string name() const override { return "scripted"; }

 protected:
  void* Allocate(size_t bytes) override { return ::operator new(bytes); }
  void Free(void* data) override { ::operator delete(data); }
  void CopyIn(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void CopyOut(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  size_t WorkspaceBytes(const NormCall&) override { return 0; }
  Status Execute(const NormCall& call, Workspace) override {
    script_(std::get<RmsNormForwardArgs>(call));
    return Status();
  }

 private:
  Script script_;
};

float* Y(const RmsNormForwardArgs& args) { return static_cast<float*>(args.y); }

/// Static: EXPECT_NONFATAL_FAILURE sees no locals.
void RunScript(ScriptedRunner::Script script) {
  static const float x[4] = {1, 2, 3, 4};
  static float y[4];
  RmsNormForwardArgs args;
  args.x = x;
  args.y = y;
  args.rows = 1;
  args.hidden_size = 4;
  ScriptedRunner runner(script);
  EXPECT_TRUE(runner.Run(args, {1}).ok());
}

TEST(NormRunnerTest, CopiesOutputsBack) {
  RunScript([](const RmsNormForwardArgs& args) { std::memcpy(args.y, args.x, 16); });
}

TEST(NormRunnerTest, ReportsAWritePastTheEnd) {
  EXPECT_NONFATAL_FAILURE(RunScript([](const RmsNormForwardArgs& args) {
                            Y(args)[4] = 0;
                          }),
                          "y: byte 0 past the end");
}

TEST(NormRunnerTest, ReportsAWriteBeforeTheBeginning) {
  EXPECT_NONFATAL_FAILURE(RunScript([](const RmsNormForwardArgs& args) {
                            Y(args)[-1] = 0;
                          }),
                          "y: a byte 4 before the tensor");
}

TEST(NormRunnerTest, ReportsAChangedInput) {
  EXPECT_NONFATAL_FAILURE(RunScript([](const RmsNormForwardArgs& args) {
                            *static_cast<float*>(const_cast<void*>(args.x)) = 7;
                          }),
                          "x is an input, but was changed");
}

TEST(ToleranceTest, AcceptsWithinAndNamesTheWorstOutside) {
  const std::vector<double> reference = {1.0, 2.0};
  EXPECT_TRUE(
      Matches(Output::kY, DType::kF32, {1.0 + 4e-6, 2.0 - 9e-6}, {&reference, Constant(1)}));
  const auto failure =
      Matches(Output::kY, DType::kF32, {1.0 + 6e-6, 3.0}, {&reference, Constant(1)});
  EXPECT_FALSE(failure);
  EXPECT_STREQ(failure.message(),
               "2 of 2 f32 values wrong; worst at index 1: got 3, want 2 within "
               "1.0000000000000001e-05");
}

TEST(ToleranceTest, NarrowTypesGetOneUlpFromTheRoundedReference) {
  const std::vector<double> reference = {1.0};
  const double ulp = 1.0 / 128;
  EXPECT_TRUE(Matches(Output::kY, DType::kBF16, {1.0 + ulp}, {&reference, Constant(1)}));
  EXPECT_FALSE(Matches(Output::kY, DType::kBF16, {1.0 + 2 * ulp}, {&reference, Constant(1)}));
}

TEST(ToleranceTest, NonFiniteValuesMustMeetTheirOwnKind) {
  const std::vector<double> nan = {std::nan("")};
  const std::vector<double> infinity = {HUGE_VAL};
  const std::vector<double> past_f16 = {70000.0};
  const std::vector<double> one = {1.0};
  EXPECT_TRUE(Matches(Output::kY, DType::kF32, nan, {&nan, Constant(1)}));
  EXPECT_FALSE(Matches(Output::kY, DType::kF32, one, {&nan, Constant(1)}));
  EXPECT_FALSE(Matches(Output::kY, DType::kF32, nan, {&one, Constant(1)}));
  EXPECT_FALSE(Matches(Output::kY, DType::kF32, {-HUGE_VAL}, {&infinity, Constant(1)}));
  EXPECT_TRUE(Matches(Output::kY, DType::kF16, infinity, {&past_f16, Constant(1)}));
  EXPECT_FALSE(Matches(Output::kY, DType::kF16, {65504.0}, {&past_f16, Constant(1)}));
}

TEST(ToleranceTest, CountsAMissingValueAsAFailure) {
  const std::vector<double> reference = {1.0, 2.0};
  EXPECT_FALSE(Matches(Output::kY, DType::kF32, {1.0}, {&reference, Constant(1)}));
}

TEST(TensorDataTest, IsRepresentableSeededAndOfItsKind) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    for (DataKind kind : kDataKinds) {
      const std::vector<double> values = MakeData(kind, 4, 50, dtype, 5);
      const std::vector<std::byte> bytes = ToBytes(dtype, values);
      EXPECT_EQ(ToBytes(dtype, ToValues(dtype, bytes)), bytes);
      EXPECT_EQ(ToBytes(dtype, MakeData(kind, 4, 50, dtype, 5)), bytes);
      EXPECT_NE(ToBytes(dtype, MakeData(kind, 4, 50, dtype, 6)), bytes);
    }
  }
  const std::vector<double> special = MakeData(DataKind::kInfAndNan, 3, 8, DType::kF16, 5);
  EXPECT_TRUE(std::isinf(special[8 + 4]));
  EXPECT_TRUE(std::isnan(special[16 + 2]));
}

TEST(ShapeFileTest, EveryListLoadsAndIsNotEmpty) {
  for (const char* name : {"smoke", "ci", "regressions", "perf"}) {
    const ShapeList shapes = LoadShapes(name);
    EXPECT_FALSE(shapes.rows.empty()) << name;
    EXPECT_FALSE(shapes.batches.empty()) << name;
  }
}

TEST(ShapeFileDeathTest, AMissingListEndsTheProcess) {
  EXPECT_EXIT(LoadShapes("no_such_list"), ::testing::ExitedWithCode(1), "cannot be read");
}

}  // namespace
}  // namespace norm::testing
