#include "client/cpp/src/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace norm::client {
namespace {

using ::testing::ElementsAre;

class FakeRetryClock : public RetryClock {
 public:
  absl::Time Now() override { return now; }
  void SleepFor(absl::Duration duration) override {
    sleeps.push_back(duration);
    now += duration;
  }
  double Random() override { return random; }

  absl::Time now = absl::UnixEpoch();
  double random = 0.5;  // the middle of the jitter: waits as the policy says
  std::vector<absl::Duration> sleeps;
};

class RetryTest : public ::testing::Test {
 protected:
  absl::Status Run(const RetryPolicy& policy, absl::Duration timeout,
                   std::vector<AttemptOutcome> outcomes) {
    return RunWithRetries(policy, clock_.now + timeout, clock_, [&] {
      const AttemptOutcome outcome = outcomes[static_cast<size_t>(attempts_)];
      ++attempts_;
      return outcome;
    });
  }

  FakeRetryClock clock_;
  int attempts_ = 0;
};

const AttemptOutcome kUnavailable{absl::UnavailableError("queue full"), std::nullopt};
const AttemptOutcome kOk{absl::OkStatus(), std::nullopt};

TEST_F(RetryTest, BacksOffExponentiallyUpToTheMaximum) {
  RetryPolicy policy{.max_attempts = 5,
                     .initial_backoff = absl::Milliseconds(20),
                     .max_backoff = absl::Milliseconds(60)};
  EXPECT_TRUE(
      Run(policy, absl::Seconds(10), {kUnavailable, kUnavailable, kUnavailable, kUnavailable, kOk})
          .ok());
  EXPECT_THAT(clock_.sleeps, ElementsAre(absl::Milliseconds(20), absl::Milliseconds(40),
                                         absl::Milliseconds(60), absl::Milliseconds(60)));
}

TEST_F(RetryTest, ScalesTheWaitByItsJitter) {
  clock_.random = 0.0;
  RetryPolicy policy{.initial_backoff = absl::Milliseconds(100), .jitter = 0.25};
  EXPECT_TRUE(Run(policy, absl::Seconds(10), {kUnavailable, kOk}).ok());
  EXPECT_THAT(clock_.sleeps, ElementsAre(absl::Milliseconds(75)));
}

TEST_F(RetryTest, StopsAfterTheLastAttempt) {
  EXPECT_EQ(Run({.max_attempts = 2}, absl::Seconds(10), {kUnavailable, kUnavailable}),
            kUnavailable.status);
  EXPECT_EQ(attempts_, 2);
  EXPECT_EQ(clock_.sleeps.size(), 1u);
}

TEST_F(RetryTest, NeverRepeatsAnotherError) {
  for (absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInternal}) {
    attempts_ = 0;
    EXPECT_EQ(Run({}, absl::Seconds(10), {{absl::Status(code, "no"), std::nullopt}}).code(), code);
    EXPECT_EQ(attempts_, 1);
  }
}

TEST_F(RetryTest, WaitsAsLongAsTheServerPushesBack) {
  EXPECT_TRUE(
      Run({}, absl::Seconds(10), {{absl::UnavailableError("later"), absl::Milliseconds(730)}, kOk})
          .ok());
  EXPECT_THAT(clock_.sleeps, ElementsAre(absl::Milliseconds(730)));
}

TEST_F(RetryTest, GivesUpOnANegativePushback) {
  EXPECT_FALSE(
      Run({}, absl::Seconds(10), {{absl::UnavailableError("never"), absl::Milliseconds(-1)}}).ok());
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetryTest, ReturnsTheErrorAtOnceWhenTheWaitWouldPassTheDeadline) {
  EXPECT_EQ(Run({}, absl::Milliseconds(500), {{absl::UnavailableError("later"), absl::Seconds(2)}})
                .message(),
            "later");
  EXPECT_TRUE(clock_.sleeps.empty());
  EXPECT_EQ(attempts_, 1);
}

TEST(RetryPolicyTest, RefusesValuesThatMakeNoSense) {
  EXPECT_TRUE(Validate(RetryPolicy{}).ok());
  EXPECT_FALSE(Validate(RetryPolicy{.max_attempts = 0}).ok());
  EXPECT_FALSE(Validate(RetryPolicy{.initial_backoff = absl::Seconds(-1)}).ok());
  EXPECT_FALSE(
      Validate(RetryPolicy{.initial_backoff = absl::Seconds(2), .max_backoff = absl::Seconds(1)})
          .ok());
  EXPECT_FALSE(Validate(RetryPolicy{.backoff_multiplier = 0.5}).ok());
  EXPECT_FALSE(Validate(RetryPolicy{.jitter = 1.5}).ok());
}

}  // namespace
}  // namespace norm::client
