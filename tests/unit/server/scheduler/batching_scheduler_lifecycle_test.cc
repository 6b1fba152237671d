// How jobs end other than by success: deadlines, departed callers, failures, lost devices,
// shutdown.
#include <gmock/gmock.h>

#include <thread>

#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class BatchingSchedulerLifecycleTest : public SchedulerFixture {};

TEST_F(BatchingSchedulerLifecycleTest, ReapEndsExpiredJobsOnly) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto soon = SubmitDue(absl::Milliseconds(5));
  const auto later = SubmitDue(absl::Milliseconds(50));
  const auto never = SubmitRows(1);
  clock_.Advance(absl::Milliseconds(5));
  scheduler().ReapQueue();
  ASSERT_TRUE(soon->done());
  EXPECT_EQ(soon->result().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(soon->result().timing.queue, absl::Milliseconds(5));
  EXPECT_FALSE(later->done());
  EXPECT_FALSE(never->done());
  EXPECT_EQ(scheduler().Load().queued_requests, 2);
  executor.Finish();
  EXPECT_EQ(executor.batch(0).jobs.size(), 2);
}

TEST_F(BatchingSchedulerLifecycleTest, ExpiredJobsAreNotStartedWhenASlotFrees) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto expired = SubmitDue(absl::Milliseconds(5));
  const auto alive = SubmitDue(absl::Milliseconds(50));
  clock_.Advance(absl::Milliseconds(10));
  executor.Finish();
  EXPECT_EQ(expired->result().status.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(executor.running(), 1);
  EXPECT_EQ(executor.batch(0).jobs.size(), 1);
  executor.Finish();
  EXPECT_TRUE(alive->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, FiveHundredExpiredJobsCostNoLaunch) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  for (int i = 0; i < 500; ++i) {
    SubmitDue(absl::Milliseconds(5));
  }
  const auto patient = SubmitDue(absl::Seconds(10));
  clock_.Advance(absl::Seconds(1));
  executor.Finish();
  EXPECT_EQ(executor.started(), 2);
  executor.Finish();
  EXPECT_TRUE(patient->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, ReapEndsJobsWhoseCallerLeft) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  const auto left = Submit(test::JobBuilder(test::RmsNormProblem(2, 4)).Cancelled(flag));
  const auto stayed = SubmitRows(3);
  scheduler().ReapQueue();
  EXPECT_FALSE(left->done());
  flag->store(true);
  scheduler().ReapQueue();
  ASSERT_TRUE(left->done());
  EXPECT_EQ(left->result().status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(stayed->done());
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(3));
}

TEST_F(BatchingSchedulerLifecycleTest, DepartedCallersAreNotStartedWhenASlotFrees) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  const auto first = Submit(test::JobBuilder(test::RmsNormProblem(2, 4)).Cancelled(flag));
  SubmitRows(3);
  const auto last = Submit(test::JobBuilder(test::RmsNormProblem(4, 4)).Cancelled(flag));
  flag->store(true);
  executor.Finish();
  EXPECT_EQ(first->result().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(last->result().status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(3));
}

TEST_F(BatchingSchedulerLifecycleTest, AQueueOfDepartedCallersLeavesTheSlotFree) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  for (int i = 0; i < 5; ++i) {
    Submit(test::JobBuilder(test::RmsNormProblem(2, 4)).Cancelled(flag));
  }
  flag->store(true);
  executor.Finish();
  EXPECT_EQ(executor.running(), 0);
  EXPECT_EQ(scheduler().Load().in_flight_requests, 0);
}

TEST_F(BatchingSchedulerLifecycleTest, EachJobGetsItsOwnStatus) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto a = SubmitRows(2);
  const auto b = SubmitRows(3);
  executor.Finish();
  std::vector<JobResult> results(2);
  results[0].status = absl::InternalError("broken");
  executor.FinishWith(std::move(results));
  EXPECT_EQ(a->result().status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(b->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, AnExecutorThatLosesResultsIsAnInternalError) {
  auto& executor = AddExecutor();
  const auto job = SubmitRows(1);
  executor.FinishWith({});
  EXPECT_EQ(job->result().status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(job->result().status.message()), HasSubstr("0 results for 1"));
}

TEST_F(BatchingSchedulerLifecycleTest, AFailedBatchDoesNotStopTheNext) {
  auto& executor = AddExecutor();
  const auto bad = SubmitRows(1);
  const auto good = SubmitRows(2);
  executor.Finish(0, absl::InternalError("launch refused"));
  executor.Finish();
  EXPECT_EQ(bad->result().status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(good->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, WorkMovesToTheRemainingDevice) {
  auto& lost = AddExecutor({.device_name = "lost"});
  auto& healthy = AddExecutor({.device_name = "healthy"});
  const auto on_lost = SubmitRows(1);
  SubmitRows(1);
  const auto waiting = SubmitRows(3);
  lost.set_healthy(false);
  lost.Finish(0, absl::InternalError("illegal address"));
  EXPECT_EQ(on_lost->result().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(lost.running(), 0);
  EXPECT_FALSE(waiting->done());
  healthy.Finish();
  healthy.Finish();
  EXPECT_TRUE(waiting->result().status.ok());
  EXPECT_EQ(waiting->result().timing.device, "healthy");
}

TEST_F(BatchingSchedulerLifecycleTest, LosingTheLastDeviceEndsTheQueue) {
  auto& executor = AddExecutor({.slots = 2});
  SubmitRows(1);
  const auto second = SubmitRows(1);
  const auto waiting = SubmitRows(3);
  executor.set_healthy(false);
  executor.Finish(0, absl::InternalError("illegal address"));
  ASSERT_TRUE(waiting->done());
  EXPECT_EQ(waiting->result().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(waiting->result().status), absl::ZeroDuration());
  EXPECT_FALSE(second->done());  // the executor still owes it
}

// The second device is lost, and those that wait are looked through, between the moments when a job
// is accepted and when it stands in the queue: as if it had been lost before and had come back for the
// first of them alone.
TEST_F(BatchingSchedulerLifecycleTest, AJobThatIsFiledAfterItsDeviceWasLostEndsToo) {
  auto& small = AddExecutor({.device_name = "small", .max_batch_bytes = 64});
  auto& large = AddExecutor({.device_name = "large"});
  SubmitRows(1);
  const auto running = SubmitRows(100);
  ASSERT_EQ(large.running(), 1);
  large.set_healthy(false);
  scheduler().ReapQueue();
  large.set_healthy(true);
  large.LoseAtLook(2);
  const auto filed = SubmitRows(100);
  ASSERT_TRUE(filed->done());
  EXPECT_EQ(filed->result().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scheduler().Load().queued_requests, 0);
  EXPECT_FALSE(running->done());
  large.Finish();
  small.Finish();
}

TEST_F(BatchingSchedulerLifecycleTest, JobsThatOnlyTheLostDeviceTookEndToo) {
  auto& small = AddExecutor({.device_name = "small", .max_batch_bytes = 200});
  auto& large = AddExecutor({.device_name = "large", .max_batch_bytes = 10'000});
  SubmitRows(50);
  const auto needs_large = SubmitRows(60);
  SubmitRows(1);
  const auto fits_small = SubmitRows(2);
  large.set_healthy(false);
  large.Finish(0, absl::InternalError("illegal address"));
  EXPECT_EQ(needs_large->result().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(fits_small->done());
  small.Finish();
  small.Finish();
  EXPECT_TRUE(fits_small->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, DoneMaySubmitAgain) {
  auto& executor = AddExecutor();
  auto outer = std::make_unique<Job>();
  outer->problem = test::RmsNormProblem(1, 4);
  Outcome inner;
  outer->inputs[0].size_bytes = 16;
  outer->done = [&](JobResult) { inner = SubmitRows(7); };
  ASSERT_TRUE(scheduler().Submit(outer).ok());
  executor.Finish();
  ASSERT_NE(inner, nullptr);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(7));
}

TEST_F(BatchingSchedulerLifecycleTest, DrainReturnsWhenNothingIsInFlight) {
  auto& executor = AddExecutor();
  const auto running = SubmitRows(1);
  const auto waiting = SubmitRows(2);
  std::thread device([&] {
    executor.AwaitAndFinish();
    executor.AwaitAndFinish();
  });
  EXPECT_TRUE(scheduler().Drain(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(running->done());
  EXPECT_TRUE(waiting->done());
  device.join();
}

TEST_F(BatchingSchedulerLifecycleTest, DrainSaysHowManyAreLeft) {
  AddExecutor();
  SubmitRows(1);
  SubmitRows(2);
  const absl::Status status = scheduler().Drain(absl::InfinitePast());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2"));
}

TEST_F(BatchingSchedulerLifecycleTest, DestructionEndsTheQueueAndWaitsForTheDevice) {
  auto& executor = AddExecutor();
  const auto running = SubmitRows(1);
  const auto waiting = SubmitRows(2);
  std::thread device([&] {
    waiting->Await();  // ended by the destructor
    executor.AwaitAndFinish();
  });
  DestroyScheduler();
  EXPECT_TRUE(running->result().status.ok());
  EXPECT_EQ(waiting->result().status.code(), absl::StatusCode::kUnavailable);
  device.join();
}

TEST_F(BatchingSchedulerLifecycleTest, TimerThreadEndsExpiredJobsByItself) {
  options_.reaping = Reaping::kTimerThread;
  auto& executor = AddExecutor();
  BatchingScheduler real({&executor}, options_, Clock::Real(), metrics_);
  const auto submit = [&](absl::Time deadline) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto job = test::JobBuilder(test::RmsNormProblem(1, 4)).Deadline(deadline).Build(outcome);
    EXPECT_TRUE(real.Submit(job).ok());
    return outcome;
  };
  const auto running = submit(absl::InfiniteFuture());
  const auto far = submit(Clock::Real().Now() + absl::Hours(1));
  const auto near = submit(Clock::Real().Now() + absl::Seconds(1));
  near->Await();
  EXPECT_EQ(near->result().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(far->done());
  executor.Finish();
  executor.Finish();
  EXPECT_TRUE(far->result().status.ok());
}

TEST_F(BatchingSchedulerLifecycleTest, TimerThreadReapsWhenAsked) {
  options_.reaping = Reaping::kTimerThread;
  auto& executor = AddExecutor();
  BatchingScheduler real({&executor}, options_, Clock::Real(), metrics_);
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  auto outcome = std::make_shared<test::JobOutcome>();
  auto first = test::JobBuilder(test::RmsNormProblem(1, 4)).Build(nullptr);
  first->done = [](JobResult) {};
  ASSERT_TRUE(real.Submit(first).ok());
  auto job = test::JobBuilder(test::RmsNormProblem(1, 4)).Cancelled(flag).Build(outcome);
  ASSERT_TRUE(real.Submit(job).ok());
  flag->store(true);
  real.ReapQueue();
  outcome->Await();
  EXPECT_EQ(outcome->result().status.code(), absl::StatusCode::kCancelled);
  executor.Finish();
}

}  // namespace
}  // namespace norm::server
