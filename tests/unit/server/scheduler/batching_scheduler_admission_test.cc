// What is refused before it is queued, and how.
#include <gmock/gmock.h>

#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

test::JobBuilder Rows(int64_t rows) { return test::JobBuilder(test::RmsNormProblem(rows, 4)); }

class BatchingSchedulerAdmissionTest : public SchedulerFixture {};

TEST_F(BatchingSchedulerAdmissionTest, FullQueueIsUnavailableWithRetryAfter) {
  options_.max_queue_requests = 2;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(1);
  SubmitRows(1);
  const absl::Status status = Refused(Rows(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
  EXPECT_THAT(std::string(status.message()), HasSubstr("2"));
  executor.Finish();
  SubmitRows(1);  // room again
}

TEST_F(BatchingSchedulerAdmissionTest, AQueueOfZeroStillServesFreeSlots) {
  options_.max_queue_requests = 0;
  AddExecutor({.slots = 2});
  SubmitRows(1);
  SubmitRows(1);
  EXPECT_EQ(Refused(Rows(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(BatchingSchedulerAdmissionTest, ByteBudgetIsUnavailableUntilBytesReturn) {
  options_.max_in_flight_bytes = 1000;
  auto& executor = AddExecutor({.slots = 2});
  SubmitRows(20);  // 656 bytes
  const absl::Status status = Refused(Rows(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
  EXPECT_EQ(scheduler().Load().in_flight_bytes, 656);
  executor.Finish();
  EXPECT_EQ(scheduler().Load().in_flight_bytes, 0);
  SubmitRows(20);
}

TEST_F(BatchingSchedulerAdmissionTest, ALaunchHasRoomForItsWorkspaceOrIsRefused) {
  options_.express_bytes = 100;
  AddExecutor({.slots = 4, .max_batch_bytes = 1000, .workspace_bytes = 344});
  SubmitRows(20);  // 656 bytes
  SubmitRows(2);   // 80 bytes: its workspace is not asked for
  EXPECT_EQ(Refused(Rows(21)), absl::ResourceExhaustedError(
                                   "request takes 688 bytes of inputs and outputs and 344 of "
                                   "workspace, the limit is 1000 (one launch of any device)"));
}

TEST_F(BatchingSchedulerAdmissionTest, ARequestOverTheBudgetIsResourceExhausted) {
  options_.max_in_flight_bytes = 1000;
  AddExecutor();
  const absl::Status status = Refused(Rows(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3216"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000"));
  SubmitRows(1);
}

TEST_F(BatchingSchedulerAdmissionTest, ARequestOverEveryDevicesLimitIsResourceExhausted) {
  AddExecutor({.max_batch_bytes = 500});
  AddExecutor({.max_batch_bytes = 2000});
  const absl::Status status = Refused(Rows(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3216"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2000"));
  SubmitRows(60);
}

TEST_F(BatchingSchedulerAdmissionTest, AnEightExbibyteClaimIsRefusedByArithmeticAlone) {
  AddExecutor();
  auto job = std::make_unique<Job>();
  job->problem = test::RmsNormProblem(int64_t{1} << 38, int64_t{1} << 20);
  EXPECT_EQ(scheduler().Submit(job).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BatchingSchedulerAdmissionTest, APassedDeadlineIsRefused) {
  auto& executor = AddExecutor();
  EXPECT_EQ(Refused(Rows(1).Deadline(clock_.Now())).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(executor.started(), 0);
}

TEST_F(BatchingSchedulerAdmissionTest, ADepartedCallerIsRefused) {
  auto& executor = AddExecutor();
  const auto gone = std::make_shared<std::atomic<bool>>(true);
  EXPECT_EQ(Refused(Rows(1).Cancelled(gone)).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(executor.started(), 0);
}

TEST_F(BatchingSchedulerAdmissionTest, DrainingRefusesNewWorkAndFinishesTheRest) {
  auto& executor = AddExecutor();
  const auto running = SubmitRows(1);
  const auto waiting = SubmitRows(2);
  scheduler().StartDraining();
  const absl::Status status = Refused(Rows(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
  executor.Finish();
  executor.Finish();
  EXPECT_TRUE(running->result().status.ok());
  EXPECT_TRUE(waiting->result().status.ok());
}

TEST_F(BatchingSchedulerAdmissionTest, NoHealthyDeviceIsUnavailable) {
  auto& executor = AddExecutor();
  scheduler();
  executor.set_healthy(false);
  const absl::Status status = Refused(Rows(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
}

TEST_F(BatchingSchedulerAdmissionTest, RetryAfterFollowsServiceTimeAndQueueLength) {
  options_.max_queue_requests = 100;
  auto& executor = AddExecutor();
  const auto submit_unmergeable = [&](int n) {
    for (int i = 0; i < n; ++i) Submit(test::JobBuilder(test::UnitProblem(1, i)));
  };
  submit_unmergeable(1);
  clock_.Advance(absl::Milliseconds(20));
  executor.Finish();
  // One running, a hundred behind it, 20 ms each.
  submit_unmergeable(101);
  const auto same = [] { return test::JobBuilder(test::UnitProblem(1, 0)); };
  EXPECT_EQ(RetryAfter(Refused(same())), absl::Milliseconds(20 * 101));
  // Later by what four requests like this one take.
  EXPECT_EQ(RetryAfter(Refused(same())), absl::Milliseconds(20 * 101 + 4 * 20));
}

TEST_F(BatchingSchedulerAdmissionTest, CountsLoad) {
  AddExecutor();
  SubmitRows(1);
  SubmitRows(2);
  const SchedulerLoad load = scheduler().Load();
  EXPECT_EQ(load.queued_requests, 1);
  EXPECT_EQ(load.in_flight_requests, 2);
  EXPECT_EQ(load.in_flight_bytes, (16 + 32) + (16 + 64));
}

}  // namespace
}  // namespace norm::server
