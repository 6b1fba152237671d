// The tools that the kernel tests judge with: they must fail where they should.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/norm_runner.h"
#include "tests/support/quantized_output.h"
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
  void Fill(void* to, std::byte value, size_t bytes) override {
    std::memset(to, std::to_integer<int>(value), bytes);
  }
  void CopyIn(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void CopyOut(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void Wait() override {}
  size_t WorkspaceBytes(const NormCall&) override { return 0; }
  Status Execute(const NormCall& call, Workspace) override {
    script_(std::get<RmsNormForwardArgs>(call));
    return Status();
  }
  size_t SegmentsWorkspaceBytes(const std::vector<NormCall>&) override { return 0; }
  Status ExecuteSegments(const std::vector<NormCall>& calls, Workspace workspace) override {
    for (const NormCall& call : calls) NORM_RETURN_IF_ERROR(Execute(call, workspace));
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

/// One row of y = {1, 0.5, 2^-9, -1} at the static scale 1.
struct QuantizedExample {
  QuantizedExample() {
    problem.rows = 1;
    problem.hidden_size = 4;
    problem.output_format = OutputFormat::kF8E4M3;
    want.y = {1.0, 0.5, 0x1p-9, -1.0};
    want.y_magnitude = {1.0, 0.5, 0x1p-9, 1.0};
  }

  bool Accepts(std::vector<uint8_t> codes, std::vector<double> scales = {}) const {
    RowForwardOutputs got;
    for (uint8_t code : codes) {
      got.y.push_back(std::byte{code});
    }
    got.row_scale = ToBytes(DType::kF32, scales);
    return static_cast<bool>(MatchesQuantized(problem, want, got));
  }

  RowForwardCase problem;
  reference::RowNormResult want;
};

TEST(QuantizedOutputTest, WantsTheReferencesCodes) {
  const QuantizedExample example;
  EXPECT_TRUE(example.Accepts({0x38, 0x30, 0x01, 0xB8}));
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x02, 0xB8}));
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x00, 0xB8}));
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x01, 0x38}));
  EXPECT_FALSE(example.Accepts({0x7F, 0x30, 0x01, 0xB8}));
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x01}));
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x01, 0xB8}, {1.0}));
}

TEST(QuantizedOutputTest, AllowsEitherNeighbourAtATieOnly) {
  QuantizedExample example;
  example.want.y[0] = example.want.y_magnitude[0] = 1.0625 + 1e-6;
  EXPECT_TRUE(example.Accepts({0x38, 0x30, 0x01, 0xB8}));
  EXPECT_TRUE(example.Accepts({0x39, 0x30, 0x01, 0xB8}));
  EXPECT_FALSE(example.Accepts({0x3A, 0x30, 0x01, 0xB8}));
  example.want.y[0] = 1.0625 + 1e-4;
  EXPECT_FALSE(example.Accepts({0x38, 0x30, 0x01, 0xB8}));
}

TEST(QuantizedOutputTest, HoldsRowScalesToTheReference) {
  QuantizedExample example;
  example.problem.output_format = OutputFormat::kInt8PerRow;
  EXPECT_TRUE(example.Accepts({127, 64, 0, 0x81}, {1.0 / 127}));
  EXPECT_TRUE(example.Accepts({127, 63, 0, 0x81}, {1.000004 / 127}));  // 63.5 is a tie
  EXPECT_FALSE(example.Accepts({127, 64, 0, 0x81}, {1.00001 / 127}));
  EXPECT_FALSE(example.Accepts({127, 64, 0, 0x80}, {1.0 / 127}));
  EXPECT_FALSE(example.Accepts({127, 64, 0, 0x81}));
  example.want.y[1] = std::nan("");
  EXPECT_TRUE(example.Accepts({0, 0, 0, 0}, {std::nan("")}));
  EXPECT_FALSE(example.Accepts({0, 0, 0, 0}, {1.0}));
  EXPECT_FALSE(example.Accepts({0, 0, 1, 0}, {std::nan("")}));
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
