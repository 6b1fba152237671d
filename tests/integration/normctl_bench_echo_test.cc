// `normctl bench --echo`: phases, rounds and pairs beside the requests.
#include <cstdint>
#include <string>

#include "tests/integration/normctl_bench_fixture.h"

namespace norm::server {
namespace {

TEST_F(NormctlBenchTest, AnEchoHasTheSizesOfTheMessagesAndNoRequests) {
  const nlohmann::json report = Report(
      "--op layer_norm --direction backward --shape 16x64 --dtype f32 --warm-up 0 --duration 0.2 "
      "--echo");
  const nlohmann::json& echo = report["echo"];
  const int64_t echoes = echo["completed"];
  ASSERT_GE(echoes, 1);
  EXPECT_EQ(echo["failed"], 0);
  // dy and x go, dx comes; what is more are headers, and the timing of a response.
  const int64_t tensor = 16 * 64 * 4;
  EXPECT_GT(echo["bytes_sent"].get<int64_t>() / echoes, 2 * tensor);
  EXPECT_LT(echo["bytes_sent"].get<int64_t>() / echoes, 2 * tensor + 100);
  EXPECT_GT(echo["bytes_received"].get<int64_t>() / echoes, tensor);
  EXPECT_LT(echo["bytes_received"].get<int64_t>() / echoes, tensor + 200);
  EXPECT_TRUE(echo["stages_us"].is_null());
  EXPECT_DOUBLE_EQ(
      report["over_echo"]["requests_per_second_ratio"].get<double>(),
      report["requests_per_second"].get<double>() / echo["requests_per_second"].get<double>());
  const uint64_t requests = report["requests"];
  const norm::v1::ServerStatistics statistics = Statistics(requests + 1);
  EXPECT_EQ(statistics.requests_ok(), requests + 1);
  EXPECT_EQ(statistics.bytes_in(), (requests + 1) * 2 * tensor);
}

TEST_F(NormctlBenchTest, RoundsAddUpToTheWhole) {
  const nlohmann::json report =
      Report("--shape 2x8 --warm-up 0 --duration 3 --echo=empty --rounds 3");
  ASSERT_EQ(report["rounds"].size(), 3u);
  std::vector<double> ratios;
  for (const nlohmann::json& round : report["rounds"]) {
    ratios.push_back(round["requests_per_second"].get<double>() /
                     round["echoes_per_second"].get<double>());
  }
  std::sort(ratios.begin(), ratios.end());
  const nlohmann::json& spread = report["over_echo"]["rounds"];
  EXPECT_DOUBLE_EQ(spread["min"].get<double>(), ratios[0]);
  EXPECT_DOUBLE_EQ(spread["median"].get<double>(), ratios[1]);
  EXPECT_DOUBLE_EQ(spread["max"].get<double>(), ratios[2]);
  const uint64_t requests = report["requests"];
  EXPECT_EQ(Statistics(requests + 1).requests_ok(), requests + 1);
}

TEST_F(NormctlBenchTest, PairsHaveARequestForEachEcho) {
  for (const std::string transport : {"unary", "stream"}) {
    const nlohmann::json report =
        Report("--shape 2x8 --warm-up 0 --duration 0.2 --echo --pairs --transport " + transport);
    EXPECT_GE(report["completed"], 1);
    EXPECT_EQ(report["failed"], 0);
    EXPECT_EQ(report["echo"]["completed"], report["completed"]);
    EXPECT_EQ(report["echo"]["failed"], 0);
    EXPECT_EQ(report["rounds"], nlohmann::json::array());
    // The mean of the differences is the difference of the means.
    const double difference = report["latency_us"]["mean"].get<double>() -
                              report["echo"]["latency_us"]["mean"].get<double>();
    EXPECT_NEAR(report["over_echo"]["pairs_us"]["mean"].get<double>(), difference, 0.002);
  }
  EXPECT_EQ(Bench("--pairs"), 2);
  EXPECT_EQ(Bench("--pairs --echo --in-flight 2"), 2);
  EXPECT_THAT(Errors(), testing::HasSubstr("--pairs: is for one request in flight"));
}

TEST_F(NormctlBenchTest, AStreamIsComparedWithAStreamOfEchoes) {
  const nlohmann::json report = Report(
      "--direction backward --shape 16x64 --dtype f32 --in-flight 3 --warm-up 0 --duration 0.2 "
      "--transport stream --echo");
  const nlohmann::json& echo = report["echo"];
  const int64_t echoes = echo["completed"];
  ASSERT_GE(echoes, 1);
  EXPECT_EQ(echo["failed"], 0);
  const int64_t tensor = 16 * 64 * 4;
  EXPECT_GT(echo["bytes_sent"].get<int64_t>() / echoes, 2 * tensor);
  EXPECT_GT(echo["bytes_received"].get<int64_t>() / echoes, tensor);
  EXPECT_LT(echo["bytes_received"].get<int64_t>() / echoes, tensor + 200);
}

TEST_F(NormctlBenchTest, AnEmptyEchoHasNoBytes) {
  const nlohmann::json report =
      Report("--shape 2x8 --warm-up 0 --duration 1 --transport stream --echo=empty");
  EXPECT_EQ(report["options"]["echo"], "empty");
  EXPECT_GE(report["echo"]["completed"], 1);
  EXPECT_EQ(report["echo"]["failed"], 0);
  EXPECT_EQ(report["echo"]["bytes_sent"], 0);
  EXPECT_EQ(report["echo"]["bytes_received"], 0);
}
}  // namespace
}  // namespace norm::server
