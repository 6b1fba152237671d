// What `normctl bench` prints and writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "client/normctl/load_json.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_sweep.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;
using ::testing::Not;

const ServerIdentity kServer = {"1.2.3", {"cpu"}};

LatencySummary Latency(int64_t p50_us) {
  return {.mean = nanoseconds(1000 * p50_us + 250),
          .p50 = nanoseconds(1000 * p50_us),
          .p90 = nanoseconds(1000 * (p50_us + 1)),
          .p99 = nanoseconds(1000 * (p50_us + 2)),
          .p99_9 = nanoseconds(1000 * (p50_us + 3)),
          .max = nanoseconds(1000 * (p50_us + 4))};
}

LoadOutcome HandMadeOutcome() {
  LoadOutcome outcome;
  outcome.all.counts = {
      .completed = 100,
      .errors = {{absl::StatusCode::kUnavailable, 7}, {absl::StatusCode::kDeadlineExceeded, 2}},
      .bytes_sent = 4'000'000'000,
      .bytes_received = 1'000'000'000};
  outcome.all.latency = Latency(100);
  outcome.all.stages.emplace();
  for (size_t i = 0; i < kLoadStages; ++i)
    (*outcome.all.stages)[i] = Latency(static_cast<int64_t>(i));
  outcome.all.launches_per_request = 0.25;
  outcome.cases = {outcome.all};
  outcome.not_sent = 3;
  outcome.measured_seconds = 2;
  return outcome;
}

/// No requests under way when it ended, no stages, no errors.
LoadOutcome HandMadeEcho() {
  LoadOutcome outcome;
  outcome.all.counts = {.completed = 125, .bytes_sent = 1000, .bytes_received = 1000};
  outcome.all.latency = Latency(60);
  outcome.measured_seconds = 2;
  return outcome;
}

nlohmann::json Parse(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

TEST(LoadReportTest, JsonHoldsEveryOptionAndFigure) {
  const LoadOptions options = {.server = "h:1",
                               .cases = {{.op = Op::kLayerNorm, .weight = true, .sets = 2}},
                               .rate = 56,
                               .warm_up_seconds = 0.5};
  LoadOutcome outcome = HandMadeOutcome();
  outcome.all.stages.reset();
  outcome.cases[0].stages.reset();
  const nlohmann::json report =
      Parse(LoadJson(options, kServer, {.load = outcome, .first_calls = {nanoseconds(345'678)}}));
  const nlohmann::json figures = Parse(R"({
    "requests": 109, "completed": 100, "failed": 9,
    "errors": {"UNAVAILABLE": 7, "DEADLINE_EXCEEDED": 2}, "retried": 0, "retries": 0,
    "retried_latency_us": null,
    "bytes_sent": 4000000000, "bytes_received": 1000000000,
    "latency_us": {"mean": 100.25, "p50": 100.0, "p90": 101.0, "p99": 102.0, "p99.9": 103.0,
                   "max": 104.0},
    "stages_us": null, "launches_per_request": null})");
  nlohmann::json expected = Parse(R"({
    "options": {"server": "h:1", "tls": false, "token": false, "timeout_seconds": 60.0, "attempts": 1, "mix": null, "transport": "unary",
                "echo": null, "rounds": 2, "pairs": false, "connections": 1, "in_flight": 1,
                "rate": 56.0, "flood": null,
                "warm_up_seconds": 0.5, "duration_seconds": 10.0},
    "server_version": "1.2.3", "devices": ["cpu"],
    "not_sent": 3, "measured_seconds": 2.0, "requests_per_second": 50.0, "gb_per_second": 2.5,
    "send_delay_us": null, "echo": null, "over_echo": null, "rounds": [],
    "alone": null, "flood": null, "over_alone": null,
    "server_stages_us": {"encode": null, "send": null},
    "cases": [{"name": "layer_norm forward 4x4096 bf16 weight 2 sets", "op": "layer_norm",
               "direction": "forward", "shape": [4, 4096], "dtype": "bf16", "weight": true,
               "bias": false, "residual": false, "running": false, "weight_dtype": "bf16",
               "first_call_us": 345.678, "priority": "interactive", "share": 1, "sets": 2}]})");
  expected.update(figures);
  expected["cases"][0].update(figures);
  EXPECT_EQ(report, expected) << report.dump(2);
}

TEST(LoadReportTest, JsonHoldsStages) {
  const nlohmann::json report = Parse(LoadJson({}, kServer, {.load = HandMadeOutcome()}));
  const nlohmann::json& stages = report["stages_us"];
  EXPECT_EQ(stages.size(), kLoadStages);
  EXPECT_EQ(stages["outside"]["mean"], 0.25);
  EXPECT_EQ(stages["decode"]["p50"], 1.0);
  EXPECT_EQ(stages["queue"]["p50"], 2.0);
  EXPECT_EQ(stages["copy_in"]["p90"], 4.0);
  EXPECT_EQ(stages["kernel"]["p99"], 6.0);
  EXPECT_EQ(stages["copy_out"]["p99.9"], 8.0);
  EXPECT_EQ(stages["other"]["max"], 10.0);
  EXPECT_EQ(report["launches_per_request"], 0.25);
}

TEST(LoadReportTest, RetriedRequestsStandApart) {
  LoadOutcome outcome = HandMadeOutcome();
  outcome.all.counts.retried = 4;
  outcome.all.counts.retries = 6;
  outcome.all.retried_latency = Latency(2000);
  const nlohmann::json report = Parse(LoadJson({.attempts = 5}, kServer, {.load = outcome}));
  EXPECT_EQ(report["options"]["attempts"], 5);
  EXPECT_EQ(report["completed"], 100);
  EXPECT_EQ(report["retried"], 4);
  EXPECT_EQ(report["retries"], 6);
  EXPECT_EQ(report["retried_latency_us"]["p99"], 2002.0);
  EXPECT_THAT(LoadTable({}, kServer, {.load = outcome}),
              AllOf(HasSubstr("retried                4  by 6 tries more\n"),
                    HasSubstr("  of retried      2000.0     2001.0     2002.0     2003.0")));
}

TEST(LoadReportTest, JsonComparesWithTheEcho) {
  const nlohmann::json report =
      Parse(LoadJson({.echo = EchoSize::kSame}, kServer, {HandMadeOutcome(), HandMadeEcho()}));
  EXPECT_EQ(report["options"]["echo"], "same");
  EXPECT_EQ(report["echo"]["requests_per_second"], 62.5);
  EXPECT_EQ(report["echo"]["bytes_sent"], 1000);
  EXPECT_TRUE(report["echo"]["stages_us"].is_null());
  EXPECT_EQ(report["over_echo"],
            Parse(R"({"requests_per_second_ratio": 0.8, "p50_us": 40.0, "p99_us": 40.0,
                      "rounds": null, "pairs_us": null})"));
}

TEST(LoadReportTest, RoundsHaveTheMedianOfTheirRatios) {
  LoadResult result = {.load = HandMadeOutcome(),
                       .echo = HandMadeEcho(),
                       .rounds = {{90, 100}, {50, 100}, {140, 100}, {70, 100}}};
  const LoadOptions options = {.echo = EchoSize::kSame, .rounds = 4};
  nlohmann::json report = Parse(LoadJson(options, kServer, result));
  EXPECT_EQ(report["options"]["rounds"], 4);
  EXPECT_EQ(report["rounds"][1],
            Parse(R"({"requests_per_second": 50.0, "echoes_per_second": 100.0})"));
  EXPECT_EQ(report["over_echo"]["rounds"], Parse(R"({"median": 0.8, "min": 0.5, "max": 1.4})"));
  EXPECT_THAT(LoadTable(options, kServer, result),
              HasSubstr("  by rounds        0.800 the median of 4, 0.500 to 1.400\n"));
  result.rounds = {{60, 100}, {0, 0}};  // one in which no echo ended
  report = Parse(LoadJson(options, kServer, result));
  EXPECT_EQ(report["over_echo"]["rounds"], Parse(R"({"median": 0.6, "min": 0.6, "max": 0.6})"));
}

TEST(LoadReportTest, PairsHaveTheDifferencesOfEach) {
  const LoadResult result = {
      .load = HandMadeOutcome(), .echo = HandMadeEcho(), .pair_differences = Latency(33)};
  const LoadOptions options = {.echo = EchoSize::kSame, .pairs = true};
  const nlohmann::json report = Parse(LoadJson(options, kServer, result));
  EXPECT_EQ(report["options"]["pairs"], true);
  EXPECT_EQ(report["over_echo"]["pairs_us"]["p50"], 33.0);
  EXPECT_TRUE(report["over_echo"]["rounds"].is_null());
  EXPECT_THAT(LoadTable(options, kServer, result),
              HasSubstr("  by pairs us       33.0       34.0       35.0       36.0       37.0\n"));
}

TEST(LoadReportTest, TableHoldsTheFiguresInLines) {
  EXPECT_EQ(
      LoadTable({.echo = EchoSize::kEmpty, .rate = 56}, kServer,
                {HandMadeOutcome(), HandMadeEcho()}),
      "open loop, 56 requests/s of rms_norm forward 4x4096 bf16, 1 connections x 1 in flight, "
      "unary, 10 s after 1 s; normd 1.2.3 on cpu\n"
      "requests             109\n"
      "errors                 9\n"
      "                       2  DEADLINE_EXCEEDED\n"
      "                       7  UNAVAILABLE\n"
      "not sent               3\n"
      "requests/s          50.0\n"
      "GB/s              2.5000\n"
      "                     p50        p90        p99      p99.9        max\n"
      "latency us         100.0      101.0      102.0      103.0      104.0\n"
      "send delay us          -          -          -          -          -\n"
      "stage us            mean        p50        p99        max\n"
      "  outside            0.2        0.0        2.0        4.0\n"
      "  decode             1.2        1.0        3.0        5.0\n"
      "  queue              2.2        2.0        4.0        6.0\n"
      "  copy_in            3.2        3.0        5.0        7.0\n"
      "  kernel             4.2        4.0        6.0        8.0\n"
      "  copy_out           5.2        5.0        7.0        9.0\n"
      "  other              6.2        6.0        8.0       10.0\n"
      "launches/req.      0.250\n"
      "echo of empty messages\n"
      "requests             125\n"
      "errors                 0\n"
      "requests/s          62.5\n"
      "GB/s              0.0000\n"
      "                     p50        p90        p99      p99.9        max\n"
      "latency us          60.0       61.0       62.0       63.0       64.0\n"
      "ratio              0.800 of the echo's requests/s\n"
      "over the echo      +40.0 us at p50, +40.0 us at p99\n");
}

TEST(LoadReportTest, StagesThatTheServerCountsAreMeans) {
  const LoadResult result = {.load = HandMadeOutcome(),
                             .server_stages = {.encode_us = 2.25, .send_us = 12.5}};
  EXPECT_EQ(Parse(LoadJson({}, kServer, result))["server_stages_us"],
            Parse(R"({"encode": 2.25, "send": 12.5})"));
  EXPECT_THAT(LoadTable({}, kServer, result),
              HasSubstr("  encode             2.2          -          -          -\n"
                        "  send              12.5          -          -          -\n"
                        "launches/req."));
}

TEST(LoadReportTest, AFloodIsComparedWithTheRequestsAlone) {
  LoadOutcome beside = HandMadeOutcome();
  beside.all.latency = Latency(202);
  LoadResult result = {.load = beside, .flood = FloodResult{HandMadeOutcome(), HandMadeEcho()}};
  LoadOptions options = {.rate = 56, .flood = LoadFlood{.connections = 4, .in_flight = 8}};
  const nlohmann::json report = Parse(LoadJson(options, kServer, result));
  EXPECT_EQ(report["options"]["flood"],
            Parse(R"({"connections": 4, "in_flight": 8, "mix": null})"));
  EXPECT_EQ(report["alone"]["latency_us"]["p50"], 100.0);
  EXPECT_EQ(report["latency_us"]["p50"], 202.0);
  EXPECT_EQ(report["flood"]["requests_per_second"], 62.5);
  EXPECT_EQ(report["over_alone"], Parse(R"({"p50_ratio": 2.02, "p99_ratio": 2.0})"));
  const std::string table = LoadTable(options, kServer, result);
  EXPECT_THAT(table, HasSubstr("the same requests alone\nrequests             109\n"));
  EXPECT_THAT(table, HasSubstr("the flood: the same cases, 4 connections x 8 in flight\n"
                               "requests             125\n"));
  EXPECT_THAT(table, HasSubstr("\nbeside it           2.02 times alone at p50, 2.00 at p99\n"));
}

TEST(LoadReportTest, AClosedLoopHasNoRowsOfAnOpenOne) {
  LoadOutcome outcome = HandMadeOutcome();
  outcome.not_sent.reset();
  const std::string table = LoadTable({}, kServer, {.load = outcome});
  EXPECT_THAT(table, HasSubstr("closed loop of rms_norm forward"));
  EXPECT_THAT(table, Not(HasSubstr("not sent")));
  EXPECT_THAT(table, Not(HasSubstr("send delay")));
  EXPECT_THAT(table, Not(HasSubstr("echo")));
  EXPECT_TRUE(Parse(LoadJson({}, kServer, {.load = outcome}))["not_sent"].is_null());
}

TEST(LoadReportTest, AMixHasALineForEachCase) {
  LoadOptions options = {.mix = "m.txt", .cases = {LoadCase(), {.op = Op::kLayerNorm}}};
  LoadOutcome outcome = HandMadeOutcome();
  LoadFigures& none = outcome.cases.emplace_back();
  none.counts.errors = {{absl::StatusCode::kInternal, 5}};
  const std::string table = LoadTable(options, kServer, {.load = outcome});
  EXPECT_THAT(table, HasSubstr("closed loop of 2 cases of m.txt, 1 connections"));
  EXPECT_THAT(table, HasSubstr("cases             errors     p50 us     p99 us\n"
                               "          109          9      100.0      102.0  "
                               "rms_norm forward 4x4096 bf16\n"
                               "            5          5        0.0        0.0  "
                               "layer_norm forward 4x4096 bf16\n"));
}

TEST(LoadReportTest, ASweepHasALineAndAnObjectForEachRate) {
  LoadOutcome closed = HandMadeOutcome();
  closed.not_sent.reset();
  const SweepResult sweep = {.peak = {closed, HandMadeEcho()},
                             .points = {{40, {HandMadeOutcome(), HandMadeEcho()}}}};
  const LoadOptions options = {.echo = EchoSize::kSame};
  EXPECT_EQ(
      SweepTable(options, kServer, sweep),
      "sweep of rms_norm forward 4x4096 bf16, 1 connections x 1 in flight, unary, 10 s after 1 "
      "s; normd 1.2.3 on cpu\n"
      "        rate   requests/s     p50 us     p99 us   p99.9 us   not sent   errors   echo "
      "p50   echo p99\n"
      " closed loop         50.0      100.0      102.0      103.0          0        9       "
      "60.0       62.0\n"
      "          40         50.0      100.0      102.0      103.0          3        9       "
      "60.0       62.0\n");
  const nlohmann::json report = Parse(SweepJson(options, kServer, sweep));
  EXPECT_EQ(report["peak"]["requests_per_second"], 50.0);
  ASSERT_EQ(report["points"].size(), 1u);
  EXPECT_EQ(report["points"][0]["rate"], 40.0);
  EXPECT_EQ(report["points"][0]["latency_us"]["p99"], 102.0);
  EXPECT_EQ(report["points"][0]["echo"]["latency_us"]["p99"], 62.0);
  EXPECT_EQ(report["points"][0]["over_echo"]["p50_us"], 40.0);
}

}  // namespace
}  // namespace norm::normctl
