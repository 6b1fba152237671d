// Bytes promised to requests that come as several jobs.
#include <gmock/gmock.h>

#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

class ReservationTest : public SchedulerFixture {
 protected:
  int64_t InFlightBytes() { return scheduler().Load().in_flight_bytes; }
  /// A problem of so many, a multiple of 8.
  static NormProblem Bytes(int64_t bytes) { return test::UnitProblem(bytes / 8, 0); }
  std::unique_ptr<Job> ReservedJob(const Outcome& outcome, int64_t rows) {
    auto job = test::JobBuilder(test::RmsNormProblem(rows, 4)).Build(outcome);
    job->reserved = true;
    return job;
  }
};

TEST_F(ReservationTest, CountsUntilItGoes) {
  options_.max_in_flight_bytes = 1000;
  AddExecutor();
  auto first = scheduler().Reserve(1, 600, Bytes(96));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(InFlightBytes(), 600);
  const absl::Status full = scheduler().Reserve(1, 401, Bytes(96)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(full), absl::ZeroDuration());
  auto second = scheduler().Reserve(1, 400, Bytes(96));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(Refused(test::JobBuilder(test::RmsNormProblem(1, 4))).code(),
            absl::StatusCode::kUnavailable);
  first->reset();
  EXPECT_EQ(InFlightBytes(), 400);
  second->reset();
  EXPECT_EQ(InFlightBytes(), 0);
}

TEST_F(ReservationTest, JobsThatNoDeviceTakesAreRefusedBeforeTheyCome) {
  AddExecutor({.max_batch_bytes = 1000});
  EXPECT_EQ(scheduler().Reserve(1, 5000, Bytes(1008)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scheduler().Reserve(1, 5000, Bytes(1000)).ok());
  executors_[0]->set_healthy(false);
  EXPECT_EQ(scheduler().Reserve(1, 5000, Bytes(1000)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ReservationTest, TheWorkspaceOfTheLargestJobCounts) {
  options_.express_bytes = 0;
  AddExecutor({.max_batch_bytes = 1000, .workspace_bytes = 200});
  EXPECT_TRUE(scheduler().Reserve(1, 5000, Bytes(800)).ok());
  EXPECT_EQ(
      scheduler().Reserve(1, 5000, Bytes(808)).status(),
      absl::ResourceExhaustedError("request takes 808 bytes of inputs and outputs and 200 of "
                                   "workspace, the limit is 1000 (one launch of any device)"));
}

TEST_F(ReservationTest, JobsThatBringMemoryTravelAlone) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(1);
  auto memory = scheduler().LeaseMemory(test::RmsNormProblem(1, 4), 32);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto outcome = std::make_shared<test::JobOutcome>();
  auto job = test::JobBuilder(test::RmsNormProblem(1, 4)).Build(outcome);
  job->memory = *std::move(memory);
  ASSERT_TRUE(scheduler().Submit(job).ok());
  SubmitRows(1);
  executor.Finish();
  executor.Finish();  // the two that wait without memory, or the one with it
  executor.Finish();
  EXPECT_EQ(executor.started(), 3);
  EXPECT_EQ(outcome->result().timing.batch_requests, 1);
}

TEST_F(ReservationTest, ItsJobsAreNotCountedAgainAndPassAFullQueue) {
  options_.max_in_flight_bytes = 1000;
  options_.max_queue_requests = 1;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(1);
  const int64_t before = InFlightBytes();
  auto reservation = scheduler().Reserve(1, 1000 - before, Bytes(96));
  ASSERT_TRUE(reservation.ok());
  const auto outcome = std::make_shared<test::JobOutcome>();
  auto job = ReservedJob(outcome, 2);
  ASSERT_TRUE(scheduler().Submit(job).ok());
  accepted_.push_back(outcome);
  EXPECT_EQ(InFlightBytes(), 1000);
  EXPECT_EQ(scheduler().Load().queued_requests, 2);
  while (executor.running() > 0) executor.Finish();
  EXPECT_EQ(InFlightBytes(), 1000 - before);
  EXPECT_EQ(outcome->calls(), 1);
}

TEST_F(ReservationTest, DrainingRefusesNewOnes) {
  AddExecutor();
  scheduler().StartDraining();
  EXPECT_EQ(scheduler().Reserve(1, 1, Bytes(8)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace norm::server
