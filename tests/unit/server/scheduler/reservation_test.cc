// Bytes promised to requests that come as several jobs.
#include <gmock/gmock.h>

#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

class ReservationTest : public SchedulerFixture {
 protected:
  int64_t InFlightBytes() { return scheduler().Load().in_flight_bytes; }
  std::unique_ptr<Job> ReservedJob(const Outcome& outcome, int64_t rows) {
    auto job = test::JobBuilder(test::RmsNormProblem(rows, 4)).Build(outcome);
    job->reserved = true;
    return job;
  }
};

TEST_F(ReservationTest, CountsUntilItGoes) {
  options_.max_in_flight_bytes = 1000;
  AddExecutor();
  auto first = scheduler().Reserve(1, 600, 100);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(InFlightBytes(), 600);
  const absl::Status full = scheduler().Reserve(1, 401, 100).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(full), absl::ZeroDuration());
  auto second = scheduler().Reserve(1, 400, 100);
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
  EXPECT_EQ(scheduler().Reserve(1, 5000, 1001).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scheduler().Reserve(1, 5000, 1000).ok());
  executors_[0]->set_healthy(false);
  EXPECT_EQ(scheduler().Reserve(1, 5000, 1000).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ReservationTest, ItsJobsAreNotCountedAgainAndPassAFullQueue) {
  options_.max_in_flight_bytes = 1000;
  options_.max_queue_requests = 1;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(1);
  const int64_t before = InFlightBytes();
  auto reservation = scheduler().Reserve(1, 1000 - before, 100);
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
  EXPECT_EQ(scheduler().Reserve(1, 1, 1).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace norm::server
