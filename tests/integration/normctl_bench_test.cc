// `normctl bench` against a real server: what it counts is what the server counted.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/integration/normctl_bench_fixture.h"

namespace norm::server {
namespace {

using norm::client::ScratchFolder;
using norm::test::Await;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

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

  const norm::v1::ServerStatistics statistics = Statistics(requests + 1);
  // One more: the try of the case before the load.
  EXPECT_EQ(statistics.requests_ok(), requests + 1);
  EXPECT_EQ(statistics.requests_failed(), 0u);
  EXPECT_EQ(statistics.rows(), (requests + 1) * 3);
  EXPECT_EQ(statistics.bytes_in(), (requests + 1) * 3 * 64 * 4);
  EXPECT_EQ(statistics.bytes_out(), (requests + 1) * 3 * 64 * 4);
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
  // Of the warm-up's 20, and of the try before them, nothing is counted.
  const uint64_t served = Statistics(requests).requests_ok();
  EXPECT_GE(served, requests);
  EXPECT_LE(served, requests + 21);
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

/// All six operations, with whatever they can carry.
constexpr char kMix[] = R"(
op=rms_norm   shape=4x96 dtype=bf16 weight=inline sets=8 share=3
op=layer_norm shape=2x64 dtype=f16 weight=inline bias=inline weight_dtype=f32 residual=inline
op=rms_norm   direction=backward shape=4x96 dtype=bf16 weight=inline
op=layer_norm direction=backward shape=5x33 dtype=f32 weight=inline bias=inline share=2
op=batch_norm shape=4x8x3x3 dtype=f32 weight=inline bias=inline running=inline
op=batch_norm direction=backward shape=4x3x3x8 dtype=f64 layout=nhwc bias=inline
op=batch_norm direction=backward shape=4x8 dtype=f32 mode=inference weight=inline
)";

TEST_F(NormctlBenchTest, AMixSendsEveryOperationOverEachTransport) {
  const std::string mix = folder_.Write("mix.txt", kMix);
  norm::v1::ServerStatistics before;
  for (const std::string transport : {"unary", "stream"}) {
    const nlohmann::json report =
        Report("--mix " + mix + " --transport " + transport +
               " --connections 2 --in-flight 3 --warm-up 0 --duration 0.4");
    EXPECT_EQ(report["options"]["transport"], transport);
    EXPECT_EQ(report["failed"], 0) << report["errors"];
    ASSERT_EQ(report["cases"].size(), 7u);
    // Each case was tried once before the load.
    uint64_t requests = 0;
    uint64_t bytes_in = 0;
    uint64_t bytes_out = 0;
    for (const nlohmann::json& one : report["cases"]) {
      const uint64_t completed = one["completed"];
      ASSERT_GE(completed, 1u) << one["name"];
      EXPECT_EQ(one["bytes_sent"].get<uint64_t>() % completed, 0u);
      requests += completed + 1;
      bytes_in += one["bytes_sent"].get<uint64_t>() / completed * (completed + 1);
      bytes_out += one["bytes_received"].get<uint64_t>() / completed * (completed + 1);
    }
    EXPECT_EQ(report["completed"], requests - 7);
    const norm::v1::ServerStatistics after = Statistics(before.requests_ok() + requests);
    EXPECT_EQ(after.requests_ok() - before.requests_ok(), requests);
    EXPECT_EQ(after.requests_failed(), 0u);
    EXPECT_EQ(after.bytes_in() - before.bytes_in(), bytes_in);
    EXPECT_EQ(after.bytes_out() - before.bytes_out(), bytes_out);
    before = after;
  }
}

TEST_F(NormctlBenchTest, SharesOfAMixHold) {
  const std::string mix = folder_.Write("mix.txt",
                                        "op=rms_norm shape=1x8 dtype=f32 share=3\n"
                                        "op=layer_norm shape=1x8 dtype=f32\n");
  const nlohmann::json report = Report("--mix " + mix + " --warm-up 0 --duration 0.2");
  const int64_t three = report["cases"][0]["requests"];
  const int64_t one = report["cases"][1]["requests"];
  // One worker: the requests are the beginning of the sequence, 3 of 4 of the first case.
  EXPECT_LE(std::abs(three - 3 * one), 3) << three << " and " << one;
}

TEST_F(NormctlBenchTest, StagesAddUpToTheLatency) {
  const nlohmann::json report = Report("--shape 2x64 --warm-up 0 --duration 0.2");
  double sum = 0;
  for (const char* stage :
       {"outside", "decode", "queue", "copy_in", "kernel", "copy_out", "other"}) {
    sum += report["stages_us"][stage]["mean"].get<double>();
  }
  const double latency = report["latency_us"]["mean"];
  EXPECT_NEAR(sum, latency, latency * 1e-4);
  for (const char* stage : {"decode", "copy_in", "kernel"})
    EXPECT_GT(report["stages_us"][stage]["p50"], 0) << stage;
  // Not in a response's timing: the server's own counters have them.
  EXPECT_GT(report["server_stages_us"]["encode"], 0);
  EXPECT_GT(report["server_stages_us"]["send"], 0);
  EXPECT_EQ(report["stages_us"]["copy_out"]["max"], 0.0);  // the CPU backend copies nothing out
  // One request in flight: each has a launch of its own.
  EXPECT_EQ(report["launches_per_request"], 1.0);
}

TEST_F(NormctlBenchTest, ASweepRunsEachRate) {
  const nlohmann::json report = Report(
      "--shape 1x32 --in-flight 2 --warm-up 0 --duration 0.25 --sweep --rates 200,80 --echo");
  EXPECT_GE(report["peak"]["completed"], 1);
  EXPECT_GE(report["peak"]["echo"]["completed"], 1);
  ASSERT_EQ(report["points"].size(), 2u);
  const int64_t meant[] = {20, 50};
  for (size_t i = 0; i < 2; ++i) {
    const nlohmann::json& point = report["points"][i];
    EXPECT_EQ(point["rate"], i == 0 ? 80.0 : 200.0);
    EXPECT_EQ(point["requests"].get<int64_t>() + point["not_sent"].get<int64_t>(), meant[i]);
    const nlohmann::json& echo = point["echo"];
    EXPECT_EQ(echo["requests"].get<int64_t>() + echo["not_sent"].get<int64_t>(), meant[i]);
  }
}

TEST_F(NormctlBenchTest, AFloodIsBesideTheSameRequests) {
  const std::string mix = folder_.Write("mix.txt", "op=layer_norm shape=2x64 dtype=f32\n");
  const nlohmann::json report = Report(
      "--shape 1x32 --connections 2 --rate 200 --warm-up 0 --duration 0.25 --flood 2 "
      "--flood-in-flight 3 --flood-mix " +
      mix);
  EXPECT_EQ(report["options"]["flood"],
            nlohmann::json({{"connections", 2}, {"in_flight", 3}, {"mix", mix}}));
  uint64_t requests = 0;
  for (const nlohmann::json* phase :
       {&report["alone"], static_cast<const nlohmann::json*>(&report)}) {
    EXPECT_EQ((*phase)["requests"].get<int64_t>() + (*phase)["not_sent"].get<int64_t>(), 50);
    EXPECT_EQ((*phase)["failed"], 0);
    EXPECT_EQ((*phase)["bytes_sent"].get<int64_t>(), (*phase)["completed"].get<int64_t>() * 32 * 2);
    requests += (*phase)["requests"].get<uint64_t>();
  }
  const nlohmann::json& flood = report["flood"];
  EXPECT_GE(flood["completed"], 1);
  EXPECT_EQ(flood["bytes_sent"].get<int64_t>(), flood["completed"].get<int64_t>() * 2 * 64 * 4);
  EXPECT_TRUE(flood["not_sent"].is_null());
  EXPECT_DOUBLE_EQ(report["over_alone"]["p99_ratio"].get<double>(),
                   report["latency_us"]["p99"].get<double>() /
                       report["alone"]["latency_us"]["p99"].get<double>());
  requests += flood["requests"].get<uint64_t>() + 2;  // each case was tried once
  EXPECT_EQ(Statistics(requests).requests_ok(), requests);
}

TEST_F(NormctlBenchTest, AFloodNeedsARate) {
  EXPECT_EQ(Bench("--flood 2"), 2);
  EXPECT_EQ(Bench("--flood 2 --rate 10 --echo"), 2);
  EXPECT_THAT(Errors(), HasSubstr("--flood: excludes --echo"));
  EXPECT_EQ(Bench("--flood 1025 --rate 10"), 2);
  EXPECT_EQ(Bench("--flood-in-flight 2 --rate 10"), 2);
}

TEST_F(NormctlBenchTest, AMixThatCannotBeReadIsRefusedByName) {
  const std::string mix = folder_.Write("mix.txt",
                                        "op=rms_norm shape=1x8 dtype=f32\n"
                                        "op=rms_norm shape=1x8 dtype=f8\n");
  EXPECT_EQ(Bench("--mix " + mix), 1);
  EXPECT_EQ(Errors(), "normctl: INVALID_ARGUMENT: " + mix +
                          ":2: dtype: 'f8' is none of f32, f16, bf16, f64\n");
  EXPECT_EQ(ScratchFolder::Read(out_), "");
}

TEST_F(NormctlBenchTest, ACaseThatTheServerRefusesEndsTheRunAtOnce) {
  InProcessServerOptions options;
  options.grpc.max_message_bytes = 4096;
  CpuServer small(options);
  const std::string mix = folder_.Write("mix.txt",
                                        "op=rms_norm shape=1x8 dtype=f32\n"
                                        "op=layer_norm shape=1x4096 dtype=f32\n");
  EXPECT_EQ(BenchAgainst(small, "--mix " + mix + " --duration 600"), 1);
  EXPECT_THAT(Errors(), HasSubstr("RESOURCE_EXHAUSTED: layer_norm forward 1x4096 f32: "));
}

TEST_F(NormctlBenchTest, NothingIsShownWhereStderrIsNoTerminal) {
  ASSERT_EQ(Bench("--shape 1x32 --warm-up 0 --duration 0.8"), 0);
  EXPECT_EQ(Errors(), "");
}

TEST_F(NormctlBenchTest, ATerminalShowsWhatIsGoingOn) {
  const std::string command = "exec " + std::string(NORMCTL_PATH) + " bench --server " +
                              cpu_.server.address() + " --shape 1x32 --warm-up 0.1 --duration 1 >" +
                              out_;
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string shown;
  char buffer[4096];
  // The read fails once the child, the only other end, has gone.
  for (ssize_t count = 0; (count = ::read(terminal, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<size_t>(count));
  ::close(terminal);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << shown;
  EXPECT_THAT(shown, HasSubstr("\r\x1b[Krequests: measuring "));
  EXPECT_THAT(shown, HasSubstr(" of 1.0 s, "));
  EXPECT_THAT(shown, EndsWith("\r\x1b[K"));
  EXPECT_THAT(ScratchFolder::Read(out_), HasSubstr("latency us"));
}

TEST_F(NormctlBenchTest, ThreadsThatCannotBeStartedEndTheRunWithAnError) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's shadow memory is over any limit of address space";
#endif
  // A thread reserves a stack of 8 MiB; the limit is room for the program and some of the 1024.
  const std::string command = "ulimit -s 8192; ulimit -v 4000000; " + std::string(NORMCTL_PATH) +
                              " bench --server " + cpu_.server.address() +
                              " --shape 1x32 --in-flight 1024 --duration 600 >" + out_ + " 2>" +
                              out_ + ".err";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(Errors(),
              MatchesRegex("normctl: RESOURCE_EXHAUSTED: only [0-9]+ of 1024 threads, one "
                           "for each request in flight, can be started: .+\n"));
}

}  // namespace
}  // namespace norm::server
