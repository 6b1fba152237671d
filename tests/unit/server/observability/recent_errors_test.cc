#include "server/observability/recent_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace norm::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

TEST(RecentErrorsTest, TheNewestIsFirst) {
  RecentErrors errors;
  errors.Add(kStart, "Normalize", absl::InvalidArgumentError("eps: must be > 0, got 0"));
  errors.Add(kStart + absl::Seconds(2), "NormalizeStream", absl::UnavailableError("full"));
  const std::vector<RecentError> list = errors.List();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].method, "NormalizeStream");
  EXPECT_EQ(list[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(list[1].time, kStart);
  EXPECT_EQ(list[1].method, "Normalize");
  EXPECT_EQ(list[1].message, "eps: must be > 0, got 0");
  EXPECT_EQ(list[1].count, 1);
}

TEST(RecentErrorsTest, ABurstOfOneKindTakesOnePlaceASecondAndWashesNothingAway) {
  RecentErrors errors;
  errors.Add(kStart, "Normalize", absl::InternalError("rare"));
  for (int i = 0; i < 10'000; ++i) {
    errors.Add(kStart + absl::Microseconds(200 * i), "Normalize",
               absl::UnavailableError("queue " + std::to_string(i)));
  }
  const std::vector<RecentError> list = errors.List();
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0].message, "queue 5000");
  EXPECT_EQ(list[0].count, 5000);
  EXPECT_EQ(list[1].message, "queue 0");
  EXPECT_EQ(list[1].count, 5000);
  EXPECT_EQ(list[2].message, "rare");
}

TEST(RecentErrorsTest, OtherMethodsAndCodesAreApart) {
  RecentErrors errors;
  errors.Add(kStart, "Normalize", absl::UnavailableError("a"));
  errors.Add(kStart, "NormalizeBackward", absl::UnavailableError("b"));
  errors.Add(kStart, "Normalize", absl::InternalError("c"));
  EXPECT_EQ(errors.List().size(), 3U);
}

TEST(RecentErrorsTest, KeepsTheLastFiftyAndCutsLongTexts) {
  RecentErrors errors;
  for (int i = 0; i < 60; ++i) {
    errors.Add(kStart + absl::Seconds(i), std::string(300, 'm'),
               absl::InternalError(std::to_string(i) + std::string(1000, 'x')));
  }
  const std::vector<RecentError> list = errors.List();
  ASSERT_EQ(list.size(), 50U);
  EXPECT_THAT(list.front().message, testing::StartsWith("59x"));
  EXPECT_THAT(list.back().message, testing::StartsWith("10x"));
  EXPECT_EQ(list.front().message.size(), RecentErrors::kMessageBytes);
  EXPECT_THAT(list.front().message, testing::EndsWith("xx..."));
  EXPECT_EQ(list.front().method, std::string(197, 'm') + "...");
}

}  // namespace
}  // namespace norm::server
