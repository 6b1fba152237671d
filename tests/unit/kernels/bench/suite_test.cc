#include "bench/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "bench/report.h"

namespace norm::bench {
namespace {

using ::testing::HasSubstr;

std::vector<BenchCase> Parse(const std::string& text) {
  const Result<std::vector<BenchCase>> cases = ParseSuite(text, "suite");
  EXPECT_TRUE(cases.ok()) << cases.status().message();
  return cases.ok() ? cases.value() : std::vector<BenchCase>();
}

std::string Refusal(const std::string& text) {
  const Result<std::vector<BenchCase>> cases = ParseSuite(text, "suite");
  EXPECT_FALSE(cases.ok()) << text;
  return cases.status().message();
}

TEST(SuiteTest, RowsExpandToBothOpsBothDirectionsAndTypes) {
  const std::vector<BenchCase> cases = Parse("# comment\nrows 8192x4096 dtypes=f32,bf16\n\n");
  ASSERT_EQ(cases.size(), 8u);
  std::set<std::string> names;
  for (const BenchCase& bench_case : cases) names.insert(CaseName(bench_case));
  EXPECT_EQ(names.size(), 8u);
  EXPECT_TRUE(names.count("rms_norm/forward/f32/8192x4096"));
  EXPECT_TRUE(names.count("layer_norm/backward/bf16/8192x4096"));
  EXPECT_EQ(cases[0].shape, (std::vector<int64_t>{8192, 4096}));
  EXPECT_EQ(ElementCount(cases[0]), 8192 * 4096);
  EXPECT_EQ(cases[1].weight_dtype, DType::kBF16);  // that of x
}

TEST(SuiteTest, ChannelsExpandToLayoutsAndThreeDirections) {
  const std::vector<BenchCase> cases =
      Parse("channels 64x32x7x9 layouts=nchw,nhwc dtypes=f16 weights=f32");
  ASSERT_EQ(cases.size(), 6u);
  EXPECT_EQ(CaseName(cases[0]), "batch_norm/forward/f16/64x32x7x9/weight_f32/nchw");
  EXPECT_EQ(CaseName(cases[5]), "batch_norm/inference/f16/64x32x7x9/weight_f32/nhwc");
  EXPECT_EQ(cases[0].weight_dtype, DType::kF32);
}

TEST(SuiteTest, SettingsNarrowALine) {
  const std::vector<BenchCase> cases =
      Parse("rows 1x8192 ops=rms_norm directions=forward dtypes=bf16 variants=plain,graph");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].variant, Variant::kPlain);
  EXPECT_EQ(CaseName(cases[1]), "rms_norm/forward/bf16/1x8192/graph");
}

TEST(SuiteTest, RefusalsNameTheLineAndTheFault) {
  EXPECT_THAT(Refusal("rows 1x2\ncolumns 1x2\n"), HasSubstr("suite:2: expected 'rows' or"));
  EXPECT_THAT(Refusal("rows"), HasSubstr("suite:1: expected a shape"));
  EXPECT_THAT(Refusal("rows 3x0"), HasSubstr("expected a shape"));
  EXPECT_THAT(Refusal("rows 3x4q"), HasSubstr("expected a shape"));
  EXPECT_THAT(Refusal("rows 3x4x5"), HasSubstr("expected <rows>x<hidden_size>"));
  EXPECT_THAT(Refusal("rows 3x4 dtypes=f8"), HasSubstr("unknown value in 'dtypes=f8'"));
  EXPECT_THAT(Refusal("rows 3x4 colour=red"), HasSubstr("unknown key 'colour'"));
  EXPECT_THAT(Refusal("rows 3x4 f32"), HasSubstr("expected key=value"));
  EXPECT_THAT(Refusal("rows 3x4 ops=batch_norm"), HasSubstr("batch_norm does not fit"));
  EXPECT_THAT(Refusal("rows 3x4 directions=inference"), HasSubstr("rows have no inference"));
  EXPECT_THAT(Refusal("rows 3x4 variants=graph"), HasSubstr("graph is forward only"));
  EXPECT_THAT(Refusal("rows 3x4 dtypes=f32 weights=bf16"), HasSubstr("weights in bf16 with f32"));
  EXPECT_THAT(Refusal("channels 3x4x5"), HasSubstr("channels need layouts="));
  EXPECT_THAT(Refusal("channels 3x4x5 layouts=nc"), HasSubstr("layout nc does not fit 3x4x5"));
  EXPECT_THAT(Refusal("channels 3x4 layouts=nc variants=residual"), HasSubstr("only plain"));
  EXPECT_THAT(Refusal("# nothing\n"), HasSubstr("no cases"));
}

TEST(SuiteTest, FiltersAreAllMet) {
  const std::vector<BenchCase> cases = Parse("rows 8192x4096 dtypes=f32,bf16\nrows 5x7");
  EXPECT_EQ(Select(cases, {{"forward", "8192x4096"}, {}}).size(), 4u);
  EXPECT_EQ(Select(cases, {{"forward", "8192x4096"}, {"bf16"}}).size(), 2u);
  EXPECT_EQ(Select(cases, {{"sideways"}, {}}).size(), 0u);
  EXPECT_EQ(Select(cases, {}).size(), cases.size());
}

TEST(SuiteTest, TheShippedSuiteHasNoCaseTwice) {
  const Result<std::vector<BenchCase>> cases = LoadSuite(NORM_BENCH_DIR "/suite.txt");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  std::set<std::string> names;
  for (const BenchCase& bench_case : cases.value()) {
    EXPECT_TRUE(names.insert(CaseName(bench_case)).second) << CaseName(bench_case);
  }
  EXPECT_GT(names.size(), 250u);
}

TEST(SuiteTest, AMissingFileIsNamed) {
  const Result<std::vector<BenchCase>> cases = LoadSuite("/nowhere/suite.txt");
  EXPECT_FALSE(cases.ok());
  EXPECT_THAT(cases.status().message(), HasSubstr("/nowhere/suite.txt"));
}

}  // namespace
}  // namespace norm::bench
