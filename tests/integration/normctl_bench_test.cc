// `normctl bench` against a real server: what it counts is what the server counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "norm/v1/server.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/support/cpu_server.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::server {
namespace {

using norm::client::ScratchFolder;
using norm::test::Await;
using norm::test::CpuServer;
using ::testing::HasSubstr;

class NormctlBenchTest : public testing::Test {
 protected:
  /// Runs `normctl bench` with `arguments`; its exit code.
  int Bench(const std::string& arguments) {
    const std::string command = std::string(NORMCTL_PATH) + " bench --server " +
                                cpu_.server.address() + " " + arguments + " >" + out_ + " 2>" +
                                out_ + ".err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// What the server counted once `requests` have ended there.
  norm::v1::ServerStatistics Statistics(uint64_t requests) {
    auto stub = norm::v1::ServerService::NewStub(cpu_.server.Connect());
    norm::v1::ServerStatistics statistics;
    EXPECT_TRUE(Await([&] {
      grpc::ClientContext context;
      return stub->GetStatistics(&context, {}, &statistics).ok() &&
             statistics.requests_ok() + statistics.requests_failed() >= requests &&
             statistics.in_flight_requests() == 0;
    }));
    return statistics;
  }

  CpuServer cpu_;
  ScratchFolder folder_;
  const std::string out_ = folder_ / "out";
};

TEST_F(NormctlBenchTest, AClosedLoopCountsWhatTheServerCounts) {
  ASSERT_EQ(Bench("--op layer_norm --shape 3x64 --dtype f32 --connections 2 --in-flight 3 "
                  "--warm-up 0 --duration 0.3 --json -"),
            0)
      << ScratchFolder::Read(out_ + ".err");
  const nlohmann::json report = nlohmann::json::parse(ScratchFolder::Read(out_), nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << ScratchFolder::Read(out_);
  const uint64_t requests = report["requests"];
  EXPECT_GE(requests, 1u);
  EXPECT_EQ(report["completed"], requests);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["errors"], nlohmann::json::object());
  EXPECT_TRUE(report["not_sent"].is_null());
  EXPECT_EQ(report["bytes_sent"], requests * 3 * 64 * 4);
  EXPECT_EQ(report["bytes_received"], requests * 3 * 64 * 4);
  EXPECT_EQ(report["devices"], nlohmann::json({"cpu"}));
  const nlohmann::json& latency = report["latency_us"];
  EXPECT_GT(latency["p50"], 0);
  EXPECT_LE(latency["p50"], latency["p90"]);
  EXPECT_LE(latency["p99"], latency["p99.9"]);
  EXPECT_LE(latency["p99.9"], latency["max"]);

  const norm::v1::ServerStatistics statistics = Statistics(requests);
  EXPECT_EQ(statistics.requests_ok(), requests);
  EXPECT_EQ(statistics.requests_failed(), 0u);
  EXPECT_EQ(statistics.rows(), requests * 3);
  EXPECT_EQ(statistics.bytes_in(), requests * 3 * 64 * 4);
  EXPECT_EQ(statistics.bytes_out(), requests * 3 * 64 * 4);
}

TEST_F(NormctlBenchTest, AnOpenLoopAccountsForItsWholeSchedule) {
  const std::string json = out_ + ".json";
  ASSERT_EQ(Bench("--shape 1x32 --dtype f16 --connections 2 --in-flight 4 --rate 200 --warm-up 0.1 "
                  "--duration 0.25 --json " +
                  json),
            0)
      << ScratchFolder::Read(out_ + ".err");
  EXPECT_THAT(ScratchFolder::Read(out_), HasSubstr("open loop, 200 requests/s"));
  const nlohmann::json report = nlohmann::json::parse(ScratchFolder::Read(json), nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << ScratchFolder::Read(json);
  const uint64_t requests = report["requests"];
  // Requests 20 to 69 are meant to leave in [100, 350) ms.
  EXPECT_EQ(requests + report["not_sent"].get<uint64_t>(), 50u);
  EXPECT_EQ(report["completed"], requests);
  EXPECT_EQ(report["bytes_sent"], requests * 32 * 2);
  EXPECT_FALSE(report["send_delay_us"].is_null());
  EXPECT_EQ(report["options"]["rate"], 200.0);
  // Of the warm-up's 20 nothing is counted.
  const uint64_t served = Statistics(requests).requests_ok();
  EXPECT_GE(served, requests);
  EXPECT_LE(served, requests + 20);
}

TEST_F(NormctlBenchTest, AnOverloadedWarmUpLeavesNoBacklogToTheWindow) {
  ASSERT_EQ(Bench("--shape 1x32 --rate 1000000 --warm-up 0.2 --duration 0.2 --json -"), 0)
      << ScratchFolder::Read(out_ + ".err");
  const nlohmann::json report = nlohmann::json::parse(ScratchFolder::Read(out_), nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << ScratchFolder::Read(out_);
  const uint64_t requests = report["requests"];
  EXPECT_GE(requests, 1u);
  EXPECT_EQ(requests + report["not_sent"].get<uint64_t>(), 200'000u);
}

}  // namespace
}  // namespace norm::server
