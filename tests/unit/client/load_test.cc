// The parts of `normctl bench` that need no server: percentiles, the open loop's schedule, flags
// that contradict each other, what is printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "client/normctl/latency_summary.h"
#include "client/normctl/load_options.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_run.h"
#include "client/normctl/load_schedule.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// n, n - 1, ..., 1 ns.
std::vector<nanoseconds> Descending(int64_t n) {
  std::vector<nanoseconds> samples;
  for (int64_t i = n; i > 0; --i) samples.emplace_back(i);
  return samples;
}

std::vector<int64_t> Percentiles(std::vector<nanoseconds> samples) {
  const LatencySummary summary = *Summarize(std::move(samples));
  return {summary.p50.count(), summary.p90.count(), summary.p99.count(), summary.p99_9.count(),
          summary.max.count()};
}

TEST(LatencySummaryTest, TakesTheNearestRank) {
  EXPECT_EQ(Percentiles(Descending(1)), (std::vector<int64_t>{1, 1, 1, 1, 1}));
  EXPECT_EQ(Percentiles(Descending(2)), (std::vector<int64_t>{1, 2, 2, 2, 2}));
  EXPECT_EQ(Percentiles(Descending(10)), (std::vector<int64_t>{5, 9, 10, 10, 10}));
  EXPECT_EQ(Percentiles(Descending(1000)), (std::vector<int64_t>{500, 900, 990, 999, 1000}));
  EXPECT_EQ(Percentiles(Descending(1001)), (std::vector<int64_t>{501, 901, 991, 1000, 1001}));
  EXPECT_EQ(Percentiles({nanoseconds(7), nanoseconds(7), nanoseconds(90)}),
            (std::vector<int64_t>{7, 90, 90, 90, 90}));
}

TEST(LatencySummaryTest, IsAbsentWithoutSamples) { EXPECT_FALSE(Summarize({}).has_value()); }

TEST(OpenLoopScheduleTest, SpacesRequestsEvenlyFromTheStart) {
  const OpenLoopSchedule four(4);
  EXPECT_EQ(four.IntendedAt(0), nanoseconds(0));
  EXPECT_EQ(four.IntendedAt(1), nanoseconds(250'000'000));
  EXPECT_EQ(four.IntendedAt(4), nanoseconds(1'000'000'000));
  const OpenLoopSchedule three(3);
  EXPECT_EQ(three.IntendedAt(1), nanoseconds(333'333'333));
  EXPECT_EQ(three.IntendedAt(2), nanoseconds(666'666'667));
  // Rounding does not add up: ten minutes of a million requests a second end where they should.
  EXPECT_EQ(three.IntendedAt(1800), nanoseconds(600'000'000'000));
  EXPECT_EQ(OpenLoopSchedule(1e6).IntendedAt(600'000'000), nanoseconds(600'000'000'000));
}

TEST(OpenLoopScheduleTest, FindsTheFirstRequestFromATimeOn) {
  const OpenLoopSchedule four(4);
  EXPECT_EQ(four.FirstAtOrAfter(nanoseconds(0)), 0);
  EXPECT_EQ(four.FirstAtOrAfter(nanoseconds(1)), 1);
  EXPECT_EQ(four.FirstAtOrAfter(nanoseconds(250'000'000)), 1);
  EXPECT_EQ(four.FirstAtOrAfter(nanoseconds(250'000'001)), 2);
  EXPECT_EQ(OpenLoopSchedule(3).FirstAtOrAfter(nanoseconds(666'666'667)), 2);
}

TEST(OpenLoopScheduleTest, CountsRequestsOfAHalfOpenInterval) {
  const OpenLoopSchedule four(4);  // at 0, 250, 500, 750, 1000 ms
  EXPECT_EQ(four.RequestsIn(nanoseconds(0), nanoseconds(1'000'000'000)), 4);
  EXPECT_EQ(four.RequestsIn(nanoseconds(0), nanoseconds(1'000'000'001)), 5);
  EXPECT_EQ(four.RequestsIn(nanoseconds(1), nanoseconds(1'000'000'000)), 3);
  EXPECT_EQ(four.RequestsIn(nanoseconds(500'000'000), nanoseconds(750'000'000)), 1);
  EXPECT_EQ(four.RequestsIn(nanoseconds(500'000'001), nanoseconds(750'000'000)), 0);
  EXPECT_EQ(four.RequestsIn(nanoseconds(0), nanoseconds(0)), 0);
  // 2 of 0, 333333333, 666666667 ns.
  EXPECT_EQ(OpenLoopSchedule(3).RequestsIn(nanoseconds(0), nanoseconds(666'666'667)), 2);
  EXPECT_EQ(
      OpenLoopSchedule(1e6).RequestsIn(nanoseconds(300'000'000'000), nanoseconds(600'000'000'000)),
      300'000'000);
}

TEST(LoadOptionsTest, ReadsShapes) {
  EXPECT_EQ(ParseLoadShape("4x4096")->rows, 4);
  EXPECT_EQ(ParseLoadShape("4x4096")->hidden, 4096);
  for (const char* text :
       {"", "4", "x", "4x", "x4", "4x5x6", "4*5", "4.0x5", "4x99999999999999999999"}) {
    const absl::StatusOr<LoadShape> shape = ParseLoadShape(text);
    EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(shape.status().message()),
                AllOf(HasSubstr("--shape: "), HasSubstr(std::string("'") + text + "'")));
  }
}

std::string Refusal(const LoadOptions& options) { return std::string(Validate(options).message()); }

TEST(LoadOptionsTest, TakesDefaultsAndLimits) {
  EXPECT_TRUE(Validate({}).ok());
  EXPECT_TRUE(Validate({.connections = 1024}).ok());
  EXPECT_TRUE(Validate({.connections = 32, .in_flight = 32}).ok());
  EXPECT_TRUE(Validate({.warm_up_seconds = 0, .duration_seconds = 600}).ok());
  EXPECT_TRUE(Validate({.rate = 5e6 / 600, .duration_seconds = 600}).ok());
  EXPECT_TRUE(Validate({.rate = 1, .duration_seconds = 1}).ok());
}

TEST(LoadOptionsTest, RefusesNonsenseNamingFlagRuleAndValues) {
  EXPECT_EQ(Refusal({.connections = 0}), "--connections: 0 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.in_flight = -1}), "--in-flight: -1 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.in_flight = INT64_MAX}),
            "--in-flight: 9223372036854775807 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.connections = 64, .in_flight = 17}),
            "--in-flight: 17 on each of 64 --connections are 1088 requests in flight, over the "
            "limit of 1024");
  EXPECT_EQ(Refusal({.shape = {.rows = 0, .hidden = 8}}), "--shape: rows 0 < 1");
  EXPECT_EQ(Refusal({.shape = {.rows = 8, .hidden = -2}}), "--shape: hidden size -2 < 1");
  EXPECT_EQ(Refusal({.shape = {.rows = 65536, .hidden = 16384}}),
            "--shape: 65536x16384 of 2 bytes each is over the limit of 2147483647 bytes");
  EXPECT_THAT(Refusal({.shape = {.rows = INT64_MAX, .hidden = INT64_MAX}}), HasSubstr("--shape: "));
  EXPECT_EQ(Refusal({.warm_up_seconds = -1}), "--warm-up: -1 s is outside [0, 600]");
  EXPECT_EQ(Refusal({.warm_up_seconds = std::nan("")}), "--warm-up: nan s is outside [0, 600]");
  EXPECT_EQ(Refusal({.duration_seconds = 0}), "--duration: 0 s is outside [0.001, 600]");
  EXPECT_EQ(Refusal({.duration_seconds = 601}), "--duration: 601 s is outside [0.001, 600]");
  EXPECT_EQ(Refusal({.rate = 0}), "--rate: 0 requests/s is outside (0, 1e+06]");
  EXPECT_EQ(Refusal({.rate = std::nan("")}), "--rate: nan requests/s is outside (0, 1e+06]");
  EXPECT_EQ(Refusal({.rate = 0.5, .duration_seconds = 1}),
            "--rate: 0.5 requests/s for --duration 1 s are 0.5 requests, outside [1, 5e+07]");
  EXPECT_EQ(Refusal({.rate = 1e6, .duration_seconds = 100}),
            "--rate: 1e+06 requests/s for --duration 100 s are 1e+08 requests, outside [1, 5e+07]");
}

LoadOutcome HandMadeOutcome() {
  LoadOutcome outcome;
  outcome.server_version = "1.2.3";
  outcome.devices = {"cpu"};
  outcome.completed = 100;
  outcome.errors = {{absl::StatusCode::kUnavailable, 7}, {absl::StatusCode::kDeadlineExceeded, 2}};
  outcome.not_sent = 3;
  outcome.bytes_sent = 4'000'000'000;
  outcome.bytes_received = 1'000'000'000;
  outcome.measured_seconds = 2;
  outcome.latency = LatencySummary{nanoseconds(1500), nanoseconds(2500), nanoseconds(3500),
                                   nanoseconds(4500), nanoseconds(5500)};
  return outcome;
}

TEST(LoadReportTest, JsonHoldsEveryOptionAndFigure) {
  const LoadOptions options = {
      .server = "h:1", .op = Op::kLayerNorm, .rate = 56, .warm_up_seconds = 0.5};
  const nlohmann::json report =
      nlohmann::json::parse(LoadJson(options, HandMadeOutcome()), nullptr, false);
  EXPECT_EQ(report, nlohmann::json::parse(R"({
    "options": {"server": "h:1", "timeout_seconds": 60.0, "op": "layer_norm", "shape": [4, 4096],
                "dtype": "bf16", "connections": 1, "in_flight": 1, "rate": 56.0,
                "warm_up_seconds": 0.5, "duration_seconds": 10.0},
    "server_version": "1.2.3", "devices": ["cpu"],
    "requests": 109, "completed": 100, "failed": 9,
    "errors": {"UNAVAILABLE": 7, "DEADLINE_EXCEEDED": 2}, "not_sent": 3,
    "bytes_sent": 4000000000, "bytes_received": 1000000000, "measured_seconds": 2.0,
    "requests_per_second": 50.0, "gb_per_second": 2.5,
    "latency_us": {"p50": 1.5, "p90": 2.5, "p99": 3.5, "p99.9": 4.5, "max": 5.5},
    "send_delay_us": null})",
                                          nullptr, false))
      << report.dump(2);
}

TEST(LoadReportTest, TableHoldsTheFiguresInLines) {
  EXPECT_EQ(LoadTable({.rate = 56}, HandMadeOutcome()),
            "rms_norm 4x4096 bf16, 1 connections x 1 in flight, open loop, 56 requests/s, 10 s "
            "after 1 s; normd 1.2.3 on cpu\n"
            "requests             109\n"
            "errors                 9\n"
            "                       2  DEADLINE_EXCEEDED\n"
            "                       7  UNAVAILABLE\n"
            "not sent               3\n"
            "requests/s          50.0\n"
            "GB/s              2.5000\n"
            "                     p50        p90        p99      p99.9        max\n"
            "latency us           1.5        2.5        3.5        4.5        5.5\n"
            "send delay us          -          -          -          -          -\n");
}

TEST(LoadReportTest, AClosedLoopHasNoRowsOfAnOpenOne) {
  LoadOutcome outcome = HandMadeOutcome();
  outcome.not_sent.reset();
  EXPECT_THAT(LoadTable({}, outcome),
              AllOf(HasSubstr("closed loop"), ::testing::Not(HasSubstr("not sent")),
                    ::testing::Not(HasSubstr("send delay"))));
  EXPECT_TRUE(nlohmann::json::parse(LoadJson({}, outcome), nullptr, false)["not_sent"].is_null());
}

}  // namespace
}  // namespace norm::normctl
