#include "server/transport/middleware/admission.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

class NoScheduler final : public Scheduler {
 public:
  absl::Status Submit(std::unique_ptr<Job>&) override { return absl::InternalError("not called"); }
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(int64_t, int64_t) override {
    return absl::InternalError("not called");
  }
  void ReapQueue() override {}
  SchedulerLoad Load() const override { return {}; }
};

class AdmissionTest : public testing::Test {
 protected:
  NoScheduler scheduler_;
  Metrics metrics_{{"cpu"}, {}};
  LiveCalls calls_;
  ServingContext context_{scheduler_, metrics_, Clock::Real(), calls_, {}, {}};
  const absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(AdmissionTest, DeadlinePassedOnArrivalEndsTheRequestBeforeAnyDecoding) {
  EXPECT_TRUE(Admit(context_, now_ + absl::Nanoseconds(1), now_).ok());
  EXPECT_TRUE(Admit(context_, absl::InfiniteFuture(), now_).ok());
  EXPECT_EQ(Admit(context_, now_, now_).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Admit(context_, now_ - absl::Seconds(1), now_).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AdmissionTest, StoppingServerIsUnavailable) {
  calls_.Stop();
  EXPECT_EQ(Admit(context_, absl::InfiniteFuture(), now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdmissionTest, CallsWithoutDeadlineHaveAnInfiniteOne) {
  EXPECT_EQ(ToDeadline(std::chrono::system_clock::time_point::max()), absl::InfiniteFuture());
  EXPECT_EQ(ToDeadline(absl::ToChronoTime(now_)), now_);
}

}  // namespace
}  // namespace norm::server
