#include "server/transport/middleware/admission.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "server/scheduler/scheduler.h"
#include "server/transport/middleware/failure_log.h"

namespace norm::server {
namespace {

constexpr uint64_t kFlow = 1;
constexpr uint64_t kOther = 2;

class NoScheduler final : public Scheduler {
 public:
  absl::Status Submit(std::unique_ptr<Job>&) override { return absl::InternalError("not called"); }
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t, int64_t,
                                                       const NormProblem&) override {
    return absl::InternalError("not called");
  }
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem&, int64_t) override {
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
  UnsentResponses unsent_{
      {.max_bytes = 1000, .write_timeout = absl::Hours(1)}, metrics_, Clock::Real()};
  const Logger log_{{LogLevel::kError, LogFormat::kText}};
  FailureLog failures_{log_, Clock::Real()};
  ServingContext context_{scheduler_, metrics_, Clock::Real(), calls_, unsent_, {}, {}, failures_};
  const absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(AdmissionTest, DeadlinePassedOnArrivalEndsTheRequestBeforeAnyDecoding) {
  EXPECT_TRUE(Admit(context_, kFlow, now_ + absl::Nanoseconds(1), now_).ok());
  EXPECT_TRUE(Admit(context_, kFlow, absl::InfiniteFuture(), now_).ok());
  EXPECT_EQ(Admit(context_, kFlow, now_, now_).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Admit(context_, kFlow, now_ - absl::Seconds(1), now_).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AdmissionTest, StoppingServerIsUnavailable) {
  calls_.Stop();
  EXPECT_EQ(Admit(context_, kFlow, absl::InfiniteFuture(), now_).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(AdmissionTest, AConnectionThatDoesNotReadGetsNoMoreIn) {
  const auto admitted = [this](uint64_t flow) {
    return Admit(context_, flow, absl::InfiniteFuture(), now_);
  };
  grpc::ServerContext call;
  UnsentResponses::OfCall slow(unsent_, call);
  slow.SetFlow(kFlow);
  slow.Hold(999);
  EXPECT_TRUE(admitted(kFlow).ok());
  slow.StartWrite(1);
  EXPECT_EQ(admitted(kFlow).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(admitted(kOther).ok());
  slow.EndWrite();
  EXPECT_TRUE(admitted(kFlow).ok());
}

TEST_F(AdmissionTest, WhoHasItsEqualPartUnsentIsRefusedAtTheLimit) {
  grpc::ServerContext call;
  UnsentResponses::OfCall much(unsent_, call);
  UnsentResponses::OfCall little(unsent_, call);
  much.SetFlow(kFlow);
  little.SetFlow(kOther);
  much.Hold(501);
  little.Hold(499);
  EXPECT_EQ(unsent_.Check(kFlow).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(unsent_.Check(kOther).ok());
  little.Hold(1);
  EXPECT_EQ(unsent_.Check(kOther).code(), absl::StatusCode::kUnavailable);
  much.Drop(2);
  EXPECT_TRUE(unsent_.Check(kOther).ok());
}

TEST_F(AdmissionTest, ACallThatEndsGivesBackWhatItHeld) {
  grpc::ServerContext call;
  {
    UnsentResponses::OfCall ended(unsent_, call);
    ended.SetFlow(kFlow);
    ended.Hold(700);
    ended.StartHeldWrite(300);
    ended.Hold(600);
    EXPECT_FALSE(unsent_.Check(kFlow).ok());
  }
  UnsentResponses::OfCall next(unsent_, call);
  next.SetFlow(kFlow);
  next.Hold(999);
  EXPECT_TRUE(unsent_.Check(kFlow).ok());
}

TEST_F(AdmissionTest, CallsWithoutDeadlineHaveAnInfiniteOne) {
  EXPECT_EQ(ToDeadline(std::chrono::system_clock::time_point::max()), absl::InfiniteFuture());
  EXPECT_EQ(ToDeadline(absl::ToChronoTime(now_)), now_);
}

}  // namespace
}  // namespace norm::server
