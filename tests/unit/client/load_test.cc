// The parts of `normctl bench` that need no server: percentiles, the open loop's schedule, the order
// of a mix, flags that contradict each other, progress, the sum of samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/normctl/latency_summary.h"
#include "client/normctl/load_options.h"
#include "client/normctl/load_outcome.h"
#include "client/normctl/load_progress.h"
#include "client/normctl/load_schedule.h"
#include "client/normctl/load_sweep.h"
#include "client/normctl/mix_sequence.h"

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;

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

TEST(LatencySummaryTest, RoundsTheMean) {
  EXPECT_EQ(Summarize(Descending(1000))->mean, nanoseconds(501));  // 500.5
  EXPECT_EQ(Summarize({nanoseconds(7), nanoseconds(7), nanoseconds(90)})->mean, nanoseconds(35));
  EXPECT_EQ(Summarize({nanoseconds(-3), nanoseconds(1)})->mean, nanoseconds(-1));
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

/// The cases of the first `count` requests.
std::vector<size_t> Order(const MixSequence& sequence, int64_t count) {
  std::vector<size_t> order;
  for (int64_t i = 0; i < count; ++i) order.push_back(sequence.At(i).case_index);
  return order;
}

TEST(MixSequenceTest, SpreadsCasesByTheirShares) {
  EXPECT_EQ(Order(MixSequence({5, 1, 1}), 14),
            (std::vector<size_t>{0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0}));
  EXPECT_EQ(Order(MixSequence({1}), 3), (std::vector<size_t>{0, 0, 0}));
  EXPECT_EQ(MixSequence({300, 900, 600}).length(), 6);
  EXPECT_EQ(MixSequence({1000, 999}).length(), 1999);
}

TEST(MixSequenceTest, NumbersTheRequestsOfACase) {
  const MixSequence sequence({3, 1, 2});
  std::vector<int64_t> next(3, 0);
  for (int64_t i = 0; i < 10 * sequence.length(); ++i) {
    const MixSequence::Place place = sequence.At(i);
    EXPECT_EQ(place.ordinal, next[place.case_index]++) << i;
  }
  EXPECT_EQ(next, (std::vector<int64_t>{30, 10, 20}));
}

std::string Refusal(const LoadOptions& options) { return std::string(Validate(options).message()); }

TEST(LoadOptionsTest, TakesDefaultsAndLimits) {
  EXPECT_TRUE(Validate(LoadOptions{}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.connections = 1024}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.echo = EchoSize::kEmpty, .pairs = true}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.connections = 32, .in_flight = 32}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.warm_up_seconds = 0, .duration_seconds = 600}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.rate = 5e6 / 600, .duration_seconds = 600}).ok());
  EXPECT_TRUE(Validate(LoadOptions{.rate = 1, .duration_seconds = 1}).ok());
}

TEST(LoadOptionsTest, RefusesNonsenseNamingFlagRuleAndValues) {
  EXPECT_EQ(Refusal({.connections = 0}), "--connections: 0 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.in_flight = -1}), "--in-flight: -1 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.in_flight = INT64_MAX}),
            "--in-flight: 9223372036854775807 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.connections = 64, .in_flight = 17}),
            "--in-flight: 17 on each of 64 --connections are 1088 requests in flight, over the "
            "limit of 1024");
  EXPECT_EQ(Refusal({.warm_up_seconds = -1}), "--warm-up: -1 s is outside [0, 600]");
  EXPECT_EQ(Refusal({.warm_up_seconds = std::nan("")}), "--warm-up: nan s is outside [0, 600]");
  EXPECT_EQ(Refusal({.duration_seconds = 0}), "--duration: 0 s is outside [0.001, 600]");
  EXPECT_EQ(Refusal({.duration_seconds = 601}), "--duration: 601 s is outside [0.001, 600]");
  EXPECT_EQ(Refusal({.rate = 0}), "--rate: 0 requests/s is outside (0, 1e+06]");
  EXPECT_EQ(Refusal({.rate = std::nan("")}), "--rate: nan requests/s is outside (0, 1e+06]");
  EXPECT_EQ(Refusal({.rate = 0.5, .duration_seconds = 1}),
            "--rate: 0.5 requests/s for --duration 1 s are 0.5 requests, outside [1, 5e+07]");
  EXPECT_EQ(Refusal({.rate = 9, .flood = LoadFlood{.connections = 0}}),
            "--flood: 0 is outside [1, 1024]");
  EXPECT_EQ(Refusal({.rate = 9, .flood = LoadFlood{.connections = 128, .in_flight = 9}}),
            "--flood-in-flight: 9 on each of 128 --flood are 1152 requests in flight, over the "
            "limit of 1024");
  EXPECT_EQ(Refusal({.flood = LoadFlood()}), "--flood: needs the --rate of the client beside it");
  EXPECT_EQ(Refusal({.echo = EchoSize::kSame, .rate = 9, .flood = LoadFlood()}),
            "--flood: excludes --echo");
  EXPECT_EQ(Refusal({.rounds = 0}), "--rounds: 0 is outside [1, 100]");
  EXPECT_EQ(Refusal({.pairs = true}), "--pairs: needs --echo");
  EXPECT_EQ(Refusal({.echo = EchoSize::kSame, .pairs = true, .rate = 9}),
            "--pairs: excludes --rate");
  EXPECT_EQ(Refusal({.echo = EchoSize::kSame, .pairs = true, .in_flight = 2}),
            "--pairs: is for one request in flight, not for 1 --connections x 2 --in-flight");
  EXPECT_EQ(Refusal({.rate = 1e6, .duration_seconds = 100}),
            "--rate: 1e+06 requests/s for --duration 100 s are 1e+08 requests, outside [1, 5e+07]");
}

TEST(LoadProgressTest, DescribesPhaseRateAndErrors) {
  LoadProgress progress;
  const absl::Time start = absl::Now();
  EXPECT_EQ(progress.Describe(start), "connecting");
  progress.Begin("echo", absl::Hours(1), absl::Hours(2));
  for (int i = 0; i < 1000; ++i) progress.Count(true);
  progress.Count(false);
  EXPECT_EQ(progress.Describe(start + absl::Seconds(4)),
            "echo: warm-up 4.0 of 3600.0 s, 250 requests/s, 1 errors");
  // The phase began after `start`, by less than the tenth of a second that is shown.
  EXPECT_EQ(progress.Describe(start + absl::Hours(1) + absl::Seconds(10.05)),
            "echo: measuring 10.0 of 7200.0 s, 0 requests/s, 1 errors");
  EXPECT_EQ(progress.Describe(start + absl::Hours(9)),
            "echo: measuring 7200.0 of 7200.0 s, 0 requests/s, 1 errors");
}

LoadSample Sample(int64_t latency_ns, uint32_t case_index, float kernel_us) {
  LoadSample sample{.latency = nanoseconds(latency_ns), .case_index = case_index, .launches = 0.5F};
  sample.stages[static_cast<size_t>(LoadStage::kKernel)] = kernel_us;
  return sample;
}

TEST(LoadOutcomeTest, SumsUpAllAndEachCase) {
  LoadSamples samples;
  samples.cases.resize(2);
  samples.cases[0] = {
      .completed = 3, .bytes_sent = 30, .bytes_received = 33, .retried = 1, .retries = 3};
  samples.cases[1] = {.completed = 1,
                      .errors = {{absl::StatusCode::kUnavailable, 2}},
                      .bytes_sent = 1'000'000'000,
                      .bytes_received = 1'999'999'937};
  samples.samples = {Sample(10, 0, 1.5F), Sample(20, 0, 2.5F), Sample(30, 0, 3.5F),
                     Sample(1000, 1, 0.25F)};
  samples.samples[1].retried = true;
  samples.not_sent = 4;
  samples.measured_seconds = 2;
  LoadSamples more;  // another phase of the same cases
  more.cases.resize(2);
  more.cases[1].errors = {{absl::StatusCode::kUnavailable, 1}};
  more.cases[1].retries = 2;
  more.first_error = absl::UnavailableError("full");
  more.not_sent = 1;
  more.measured_seconds = 2;
  samples.Add(std::move(more));

  const LoadOutcome outcome = Summarize(std::move(samples), SampleStages::kPresent);
  EXPECT_EQ(outcome.all.requests(), 7);
  EXPECT_EQ(outcome.all.counts.completed, 4);
  EXPECT_EQ(outcome.all.counts.errors.at(absl::StatusCode::kUnavailable), 3);
  EXPECT_EQ(outcome.all.counts.retried, 1);
  EXPECT_EQ(outcome.all.counts.retries, 5);
  EXPECT_EQ(outcome.all.latency->p50, nanoseconds(20));
  EXPECT_EQ(outcome.all.retried_latency->max, nanoseconds(20));
  EXPECT_FALSE(outcome.cases[1].retried_latency.has_value());
  EXPECT_EQ(outcome.all.latency->max, nanoseconds(1000));
  EXPECT_EQ(outcome.all.launches_per_request, 0.5);
  EXPECT_EQ(outcome.not_sent, 5);
  EXPECT_EQ(outcome.requests_per_second(), 1);
  EXPECT_EQ(outcome.gigabytes_per_second(), 0.75);
  EXPECT_EQ(outcome.first_error, absl::UnavailableError("full"));
  EXPECT_FALSE(outcome.send_delay.has_value());
  const auto kernel = static_cast<size_t>(LoadStage::kKernel);
  EXPECT_EQ((*outcome.all.stages)[kernel].max, nanoseconds(3500));
  ASSERT_EQ(outcome.cases.size(), 2u);
  EXPECT_EQ(outcome.cases[0].latency->mean, nanoseconds(20));
  EXPECT_EQ((*outcome.cases[0].stages)[kernel].mean, nanoseconds(2500));
  EXPECT_EQ(outcome.cases[1].requests(), 4);
  EXPECT_EQ((*outcome.cases[1].stages)[kernel].p50, nanoseconds(250));
}

TEST(LoadOutcomeTest, StagesAddUpToTheTimeSinceSending) {
  const client::Timing timing = {.decode_us = 1,
                                 .queue_us = 20,
                                 .copy_in_us = 3,
                                 .kernel_us = 4,
                                 .copy_out_us = 5,
                                 .total_us = 64};
  EXPECT_EQ(ToStageTimes(timing, nanoseconds(100'000)), (StageTimes{36, 1, 20, 3, 4, 5, 31}));
}

TEST(LoadOutcomeTest, EchoesHaveNoStages) {
  LoadSamples samples;
  samples.cases.resize(1);
  samples.samples = {Sample(10, 0, 0)};
  const LoadOutcome outcome = Summarize(std::move(samples), SampleStages::kAbsent);
  EXPECT_FALSE(outcome.all.stages.has_value());
  EXPECT_EQ(outcome.all.latency->p50, nanoseconds(10));
}

TEST(LoadSweepTest, RatesSurroundThePeak) {
  EXPECT_THAT(SweepRates(12345, 1),
              testing::Pointwise(testing::DoubleEq(),
                                 {1230.0, 2470.0, 3700.0, 4940.0, 6170.0, 7410.0, 8640.0, 9880.0,
                                  11100.0, 11700.0, 12300.0, 13600.0}));
  // One request in the window, at least.
  EXPECT_THAT(SweepRates(2, 1),
              testing::Pointwise(testing::DoubleEq(), {1.0, 1.2, 1.4, 1.6, 1.8, 1.9, 2.0, 2.2}));
  EXPECT_TRUE(SweepRates(0.1, 1).empty());
}

}  // namespace
}  // namespace norm::normctl
