// Predicted waits and gathering: what the scheduler does about time that has not passed yet.
#include <gmock/gmock.h>

#include "server/scheduler/batching_scheduler.h"
#include "server/scheduler/service_estimate.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class BatchingSchedulerWaitTest : public SchedulerFixture {
 protected:
  test::JobBuilder Alone(uint64_t flow = 0) {
    return test::JobBuilder(test::UnitProblem(1, kind_++)).Flow(flow);
  }
  test::JobBuilder Due(absl::Duration due, uint64_t flow = 0) {
    return Alone(flow).Deadline(clock_.Now() + due);
  }
  /// Lets `batches` launches take 10 ms each.
  void Teach(test::FakeBatchExecutor& executor, int batches) {
    for (int i = 0; i < batches; ++i) {
      Submit(Alone());
      clock_.Advance(absl::Milliseconds(10));
      executor.Finish();
    }
  }

 private:
  int kind_ = 0;
};

TEST_F(BatchingSchedulerWaitTest, WhatCannotMeetItsDeadlineIsRefusedAtOnce) {
  auto& executor = AddExecutor();
  Teach(executor, 16);
  Submit(Alone());                                                  // runs
  for (int i = 0; i < 3; ++i) Submit(Due(absl::Milliseconds(38)));  // 30 ms
  const absl::Status status = Refused(Due(absl::Milliseconds(39)));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadline is in 39ms"));
  // The one that runs, and three more.
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(40));
  Submit(Due(absl::Milliseconds(41)));
}

TEST_F(BatchingSchedulerWaitTest, AColdServerRefusesNothing) {
  auto& executor = AddExecutor();
  Teach(executor, 15);
  for (int i = 0; i < 50; ++i) Submit(Alone());
  Submit(Due(absl::Milliseconds(1)));
}

TEST_F(BatchingSchedulerWaitTest, AnIdleServerRefusesNothing) {
  auto& executor = AddExecutor({.slots = 2});
  Teach(executor, 50);
  Submit(Due(absl::Microseconds(1)));
  Submit(Due(absl::Microseconds(1)));  // in the other slot
  Submit(Due(absl::Microseconds(1)));  // nothing waits before it
}

TEST_F(BatchingSchedulerWaitTest, MoreSlotsShortenTheWait) {
  auto& executor = AddExecutor({.slots = 2});
  Teach(executor, 16);
  for (int i = 0; i < 2 + 6; ++i) Submit(Due(absl::Milliseconds(38)));  // six wait: 30 ms
  EXPECT_EQ(Refused(Due(absl::Milliseconds(39))).code(), absl::StatusCode::kUnavailable);
  Submit(Due(absl::Milliseconds(41)));
}

TEST_F(BatchingSchedulerWaitTest, AFloodIsNotAheadOfAnotherFlow) {
  auto& executor = AddExecutor();
  Teach(executor, 16);
  Submit(Alone(1));
  for (int i = 0; i < 10; ++i) Submit(Due(absl::Milliseconds(105), 1));
  EXPECT_EQ(Refused(Due(absl::Milliseconds(106), 1)).code(), absl::StatusCode::kUnavailable);
  Submit(Due(absl::Milliseconds(11), 2));
}

TEST_F(BatchingSchedulerWaitTest, ANearDeadlineGoesBeforeItsOwnFlowsPatientOnes) {
  auto& executor = AddExecutor();
  Teach(executor, 16);
  for (int i = 0; i < 20; ++i) Submit(Alone());
  Submit(Due(absl::Milliseconds(11)));
}

TEST_F(BatchingSchedulerWaitTest, RequestsThatShareALaunchAreNotCountedOneByOne) {
  auto& executor = AddExecutor();
  Teach(executor, 16);
  Submit(Alone());
  for (int i = 0; i < 100; ++i) SubmitRows(1);
  SubmitDue(absl::Milliseconds(21));  // one launch of 100 requests, then its own
}

TEST_F(BatchingSchedulerWaitTest, GathersForTheDelayThenGoesTogether) {
  options_.max_queue_delay = absl::Milliseconds(2);
  auto& executor = AddExecutor();
  SubmitRows(1);
  clock_.Advance(absl::Milliseconds(1));
  SubmitRows(2);
  EXPECT_EQ(executor.started(), 0);
  EXPECT_EQ(scheduler().Load().queued_requests, 2);
  clock_.Advance(absl::Milliseconds(1));
  scheduler().ReapQueue();
  ASSERT_EQ(executor.running(), 1);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(1, 2));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kDelay);
}

TEST_F(BatchingSchedulerWaitTest, AFullBatchDoesNotWaitForTheDelay) {
  options_.max_queue_delay = absl::Milliseconds(2);
  options_.max_batch_rows = 5;
  auto& executor = AddExecutor();
  SubmitRows(2);
  SubmitRows(3);
  ASSERT_EQ(executor.running(), 1);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(2, 3));
}

TEST_F(BatchingSchedulerWaitTest, WhatTravelsAloneDoesNotGather) {
  options_.max_queue_delay = absl::Milliseconds(2);
  auto& executor = AddExecutor();
  SubmitRows(kMinLoneJobBytes / 32);
  EXPECT_EQ(executor.running(), 1);
}

TEST_F(BatchingSchedulerWaitTest, GatheringDoesNotCostADeadline) {
  options_.max_queue_delay = absl::Milliseconds(50);
  auto& executor = AddExecutor();
  for (int i = 0; i < 16; ++i) {  // as Teach, with requests that do not gather
    SubmitRows(kMinLoneJobBytes / 32);
    clock_.Advance(absl::Milliseconds(10));
    executor.Finish();
  }
  const auto urgent = SubmitDue(absl::Milliseconds(30));  // must start within 20 ms
  clock_.Advance(absl::Milliseconds(19));
  scheduler().ReapQueue();
  EXPECT_EQ(executor.running(), 0);
  clock_.Advance(absl::Milliseconds(1));
  scheduler().ReapQueue();
  ASSERT_EQ(executor.running(), 1);
  EXPECT_FALSE(urgent->done());
}

TEST_F(BatchingSchedulerWaitTest, TheTimerThreadEndsGathering) {
  options_.max_queue_delay = absl::Milliseconds(2);
  options_.reaping = Reaping::kTimerThread;
  auto& executor = AddExecutor();
  BatchingScheduler scheduler({&executor}, options_, Clock::Real(), metrics_);
  const auto outcome = std::make_shared<test::JobOutcome>();
  auto job = test::JobBuilder(test::UnitProblem(1, 0)).Build(outcome);
  ASSERT_TRUE(scheduler.Submit(job).ok());
  executor.AwaitAndFinish();
  EXPECT_TRUE(outcome->Await().status.ok());
}

TEST(ServiceEstimateTest, FindsTheLineBehindItsBatches) {
  ServiceEstimate estimate;
  EXPECT_FALSE(estimate.known());
  EXPECT_EQ(estimate.Service(1, 1000), absl::ZeroDuration());
  for (int i = 0; i < 40; ++i) {  // 20 us and 1 us per 1000
    const int64_t cost = 1000 * (1 + i % 7);
    estimate.AddBatch(absl::Microseconds(20 + cost / 1000), cost);
  }
  EXPECT_TRUE(estimate.known());
  EXPECT_NEAR(absl::ToDoubleMicroseconds(estimate.Service(1, 0)), 20, 1e-3);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(estimate.Service(3, 50'000)), 3 * 20 + 50, 1e-3);
}

TEST(ServiceEstimateTest, EqualBatchesTellNothingAboutCost) {
  ServiceEstimate estimate;
  for (int i = 0; i < 40; ++i) estimate.AddBatch(absl::Microseconds(20), 64 << 10);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(estimate.Service(2, 1 << 30)), 40, 1e-3);
}

TEST(ServiceEstimateTest, OldBatchesFade) {
  ServiceEstimate estimate;
  for (int i = 0; i < 100; ++i) estimate.AddBatch(absl::Seconds(1), 100);
  for (int i = 0; i < 300; ++i) estimate.AddBatch(absl::Milliseconds(1), 100);
  EXPECT_LT(estimate.Service(1, 100), absl::Microseconds(1001));
}

}  // namespace
}  // namespace norm::server
