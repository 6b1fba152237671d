#include "server/scheduler/return_times.h"

#include <gtest/gtest.h>

namespace norm::server {
namespace {

constexpr absl::Duration kAlone = absl::Milliseconds(3);
constexpr absl::Duration kService = absl::Microseconds(50);
const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(ReturnTimesTest, CallersRefusedTogetherComeBackOneAfterAnother) {
  ReturnTimes times;
  EXPECT_EQ(times.Next(kStart, kAlone, kService), absl::Microseconds(3000));
  EXPECT_EQ(times.Next(kStart, kAlone, kService), absl::Microseconds(3200));
  // One whose request takes ten times as long leaves as much more room behind it.
  EXPECT_EQ(times.Next(kStart, kAlone, 10 * kService), absl::Microseconds(3400));
  EXPECT_EQ(times.Next(kStart, kAlone, kService), absl::Microseconds(5400));
  // The same points in time, later.
  EXPECT_EQ(times.Next(kStart + absl::Microseconds(600), kAlone, kService),
            absl::Microseconds(5000));
}

TEST(ReturnTimesTest, ACallerWhoComesLaterThanThatIsToldWhatOneAloneIs) {
  ReturnTimes times;
  for (int i = 0; i < 10; ++i) times.Next(kStart, kAlone, kService);
  EXPECT_EQ(times.Next(kStart + absl::Milliseconds(100), kAlone, kService), kAlone);
}

TEST(ReturnTimesTest, WhoeverDoesNotHeedThemMakesOthersWaitOnlySoLong) {
  ReturnTimes times;
  for (int i = 0; i < 100000; ++i) times.Next(kStart, kAlone, kService);
  EXPECT_EQ(times.Next(kStart, kAlone, kService), absl::Milliseconds(96));
  EXPECT_EQ(times.Next(kStart, absl::Seconds(1), kService), absl::Milliseconds(1000));
  for (int i = 0; i < 100000; ++i) times.Next(kStart, absl::Seconds(1), absl::Seconds(1));
  EXPECT_EQ(times.Next(kStart, absl::Seconds(1), kService), absl::Seconds(10));
  EXPECT_EQ(times.Next(kStart, absl::Seconds(11), kService), absl::Seconds(11));
}

TEST(ReturnTimesTest, BeforeAnythingIsKnownOfTheServiceAllWaitAlike) {
  ReturnTimes times;
  EXPECT_EQ(times.Next(kStart, kAlone, absl::ZeroDuration()), kAlone);
  EXPECT_EQ(times.Next(kStart, kAlone, absl::ZeroDuration()), kAlone);
}

}  // namespace
}  // namespace norm::server
