// How a load is counted: by hand-made times, and pairs on connections that write down what they get.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/normctl/load_pairs.h"
#include "client/normctl/load_phase.h"
#include "client/normctl/load_tally.h"

namespace norm::normctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

class FakeConnection final : public LoadConnection {
 public:
  using Answer = std::function<absl::Status(size_t case_index, int64_t ordinal)>;
  explicit FakeConnection(Answer answer) : answer_(std::move(answer)) {}

  absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal, absl::Duration) override {
    if (absl::Status status = answer_(case_index, ordinal); !status.ok()) return status;
    return LoadReply{.bytes_sent = 3, .bytes_received = 5};
  }

 private:
  const Answer answer_;
};

using Connections = std::vector<std::unique_ptr<LoadConnection>>;

Connections One(FakeConnection::Answer answer) {
  Connections connections;
  connections.push_back(std::make_unique<FakeConnection>(std::move(answer)));
  return connections;
}

double Seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

nanoseconds Sum(const std::vector<LoadSample>& samples) {
  return std::accumulate(
      samples.begin(), samples.end(), nanoseconds(0),
      [](nanoseconds sum, const LoadSample& sample) { return sum + sample.latency; });
}

TEST(LoadTallyTest, MeasuresFromTheFirstCountedRequestToTheLast) {
  const LoadTally::TimePoint start(nanoseconds(1000));
  LoadTally tally(2);
  EXPECT_EQ(tally.span(), nanoseconds(0));
  tally.Count(1, LoadReply{.bytes_sent = 7, .tries = 3},
              {start + nanoseconds(10), start + nanoseconds(12), start + nanoseconds(30)});
  tally.Count(0, absl::UnavailableError("full"),
              {start + nanoseconds(40), start + nanoseconds(40), start + nanoseconds(45)});
  EXPECT_EQ(tally.span(), nanoseconds(35));
  EXPECT_EQ(tally.busy(), nanoseconds(18 + 5));
  EXPECT_EQ(tally.last_end(), start + nanoseconds(45));
  const LoadSamples samples = tally.TakeSamples();
  ASSERT_EQ(samples.samples.size(), 1u);
  EXPECT_EQ(samples.samples[0].latency, nanoseconds(20));
  EXPECT_EQ(samples.samples[0].case_index, 1u);
  EXPECT_TRUE(samples.samples[0].retried);
  EXPECT_EQ(samples.cases[1].completed, 1);
  EXPECT_EQ(samples.cases[1].bytes_sent, 7);
  EXPECT_EQ(samples.cases[1].retries, 2);
  EXPECT_EQ(samples.cases[0].errors.at(absl::StatusCode::kUnavailable), 1);
  EXPECT_EQ(samples.first_error, absl::UnavailableError("full"));
}

TEST(LoadTallyTest, TheMeanSpanIsOfThoseThatCountedSomething) {
  const LoadTally::TimePoint start(nanoseconds(1000));
  std::vector<LoadTally> tallies(3, LoadTally(1));
  EXPECT_FALSE(MeanSpan(tallies).has_value());
  tallies[0].Count(0, LoadReply(), {start, start, start + nanoseconds(10)});
  tallies[2].Count(0, LoadReply(),
                   {start + nanoseconds(5), start + nanoseconds(5), start + nanoseconds(9)});
  tallies[2].Count(0, LoadReply(),
                   {start + nanoseconds(9), start + nanoseconds(9), start + nanoseconds(25)});
  EXPECT_EQ(MeanSpan(tallies), nanoseconds((10 + 20) / 2));
}

/// What a paired run sends: "e" and "r" with the case and the number of the request.
struct PairedRun {
  explicit PairedRun(std::function<absl::Status(int64_t)> echo,
                     nanoseconds warm_up = nanoseconds(0)) {
    const Connections requests = One([this](size_t index, int64_t ordinal) {
      sent.push_back(absl::StrCat("r", index, ordinal));
      return absl::OkStatus();
    });
    const Connections echoes = One([this, &echo](size_t index, int64_t ordinal) {
      sent.push_back(absl::StrCat("e", index, ordinal));
      return echo(echoes_sent++);
    });
    const MixSequence sequence({2, 1});
    LoadProgress progress;
    result =
        RunPairs({.warm_up = warm_up, .duration = milliseconds(100)},
                 {.connections = requests, .sequence = sequence, .cases = 2, .progress = progress},
                 {.connections = echoes, .sequence = sequence, .cases = 2, .progress = progress});
  }

  std::vector<std::string> sent;
  int64_t echoes_sent = 0;
  PairedSamples result;
};

TEST(LoadPairsTest, EachRequestStandsBesideItsEchoInTurningOrder) {
  const PairedRun run([](int64_t) { return absl::OkStatus(); });
  ASSERT_GE(run.sent.size(), 8u);
  EXPECT_EQ(std::vector<std::string>(run.sent.begin(), run.sent.begin() + 8),
            (std::vector<std::string>{"e00", "r00", "r10", "e10", "e01", "r01", "r02", "e02"}));
  const std::vector<LoadSample>& requests = run.result.requests.samples;
  const std::vector<LoadSample>& echoes = run.result.echoes.samples;
  ASSERT_EQ(requests.size(), run.sent.size() / 2);
  ASSERT_EQ(echoes.size(), requests.size());
  ASSERT_EQ(run.result.differences.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    ASSERT_EQ(run.result.differences[i], requests[i].latency - echoes[i].latency) << i;
  EXPECT_DOUBLE_EQ(run.result.requests.measured_seconds, Seconds(Sum(requests)));
  EXPECT_DOUBLE_EQ(run.result.echoes.measured_seconds, Seconds(Sum(echoes)));
}

TEST(LoadPairsTest, APairThatFailedHasNoDifference) {
  const PairedRun run([](int64_t echo) {
    return echo % 3 == 0 ? absl::UnavailableError("full") : absl::OkStatus();
  });
  const auto pairs = static_cast<int64_t>(run.result.requests.samples.size());
  const int64_t failed = (pairs + 2) / 3;
  EXPECT_EQ(static_cast<int64_t>(run.result.differences.size()), pairs - failed);
  EXPECT_EQ(run.result.echoes.cases[0].failed() + run.result.echoes.cases[1].failed(), failed);
  EXPECT_EQ(run.result.echoes.first_error, absl::UnavailableError("full"));
}

TEST(LoadPairsTest, TheWarmUpIsNotCounted) {
  const PairedRun run([](int64_t) { return absl::OkStatus(); }, milliseconds(100));
  EXPECT_GT(run.sent.size() / 2, run.result.differences.size());
  EXPECT_EQ(run.result.differences.size(), run.result.requests.samples.size());
}

}  // namespace
}  // namespace norm::normctl
