#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace norm::bench {
namespace {

using ::testing::HasSubstr;

ResultRow Row(const std::string& impl, double us) {
  BenchCase bench_case;
  bench_case.op = Op::kLayerNorm;
  bench_case.dtype = bench_case.weight_dtype = DType::kBF16;
  bench_case.shape = {8192, 4096};
  ResultRow row = DescribeCase(bench_case, impl);
  row.us = us;
  row.share_of_copy = 0.9125;
  row.share_of_same_size_copy = 0.9375;
  return row;
}

Report Example() {
  Report report;
  report.device = "A card";
  report.date = "2026-11-29";
  report.commit = "abc";
  report.source_hash = "0123";
  report.copy_gbs = 4285.5;
  report.rows = {Row("normd", 32.125), Row("torch", 50.0)};
  return report;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ReportTest, HasExactlyTheFieldsOfTheSchema) {
  Report report = Example();
  report.rows.pop_back();
  EXPECT_EQ(ToJson(report),
            "{\"device\": \"A card\",\n \"date\": \"2026-11-29\",\n \"commit\": \"abc\",\n"
            " \"source_hash\": \"0123\",\n \"copy_gbs\": 4285.5,\n \"rows\": [\n"
            "  {\"op\":\"layer_norm\",\"direction\":\"forward\",\"dtype\":\"bf16\","
            "\"weight_dtype\":\"bf16\",\"shape\":[8192,4096],\"layout\":\"\",\"variant\":\"\","
            "\"impl\":\"normd\",\"us\":32.125,\"bytes\":134299648,\"share_of_copy\":0.9125,"
            "\"share_of_same_size_copy\":0.9375}\n]}\n");
}

TEST(ReportTest, ReadsWhatItWrites) {
  const Result<Report> read = ReportFromJson(ToJson(Example()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value(), Example());
}

TEST(ReportTest, MergingReplacesTheSameMeasurementOnly) {
  Report report = Example();
  Merge(report, Row("torch", 40.0));
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[1].us, 40.0);
  ResultRow other = Row("torch", 41.0);
  other.weight_dtype = "f32";
  Merge(report, other);
  EXPECT_EQ(report.rows.size(), 3u);
}

TEST(ReportTest, RefusesWhatIsNoResultFile) {
  EXPECT_FALSE(ReportFromJson("{").ok());
  const Result<Report> missing = ReportFromJson("{\"device\": \"x\"}");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("date"));
  EXPECT_FALSE(ReadReport("/nowhere/results.json").ok());
}

TEST(ReportTest, FilesAreReplacedWhole) {
  const std::string path = ::testing::TempDir() + "/report_test.json";
  ASSERT_TRUE(WriteFileWhole(path, "first").ok());
  ASSERT_TRUE(WriteFileWhole(path, ToJson(Example())).ok());
  EXPECT_EQ(Contents(path), ToJson(Example()));
  EXPECT_FALSE(std::filesystem::exists(path + ".unfinished"));
  EXPECT_FALSE(WriteFileWhole("/nowhere/results.json", "x").ok());
}

}  // namespace
}  // namespace norm::bench
