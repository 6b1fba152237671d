// Jobs that the executor sees through on the thread that submits them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/batching_scheduler.h"
#include "tests/support/fake_batch_executor.h"
#include "tests/support/fake_clock.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

/// Ends what comes by Run before Run returns; holds what comes by Start, as a FakeBatchExecutor.
class PromptExecutor final : public BatchExecutor {
 public:
  const std::string& device_name() const override { return held_.device_name(); }
  int slots() const override { return held_.slots(); }
  bool healthy() const override { return true; }
  int64_t max_batch_bytes() const override { return held_.max_batch_bytes(); }
  int64_t WorkspaceBytes(const NormProblem&) const override { return 0; }
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem, int64_t input_bytes) override {
    return held_.LeaseMemory(problem, input_bytes);
  }
  void Start(std::unique_ptr<Batch> batch, BatchDone done) override {
    held_.Start(std::move(batch), std::move(done));
  }
  void Run(std::unique_ptr<Batch> batch, BatchDone done) override {
    ++runs_;
    batch->results.resize(batch->jobs.size());
    done(std::move(batch));
  }

  int runs() const { return runs_; }
  test::FakeBatchExecutor& held() { return held_; }

 private:
  test::FakeBatchExecutor held_;
  int runs_ = 0;
};

class BatchingSchedulerRunTest : public testing::Test {
 protected:
  static std::unique_ptr<Job> MakeJob(absl::AnyInvocable<void(JobResult)> done) {
    auto job = test::JobBuilder(test::RmsNormProblem(1, 4)).Build(nullptr);
    job->done = std::move(done);
    return job;
  }

  test::FakeClock clock_;
  Metrics metrics_{{"fake"}, BatchCloseReasonNames()};
  PromptExecutor executor_;
  BatchingScheduler scheduler_{{&executor_}, {.reaping = Reaping::kByCaller}, clock_, metrics_};
};

TEST_F(BatchingSchedulerRunTest, AJobMayEndBeforeSubmitReturnsAndLeavesNothingBehind) {
  for (int i = 0; i < 3; ++i) {
    int ended = 0;
    auto job = MakeJob([&](JobResult result) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.timing.batch_requests, 1);
      ++ended;
    });
    ASSERT_TRUE(scheduler_.Submit(job).ok());
    EXPECT_EQ(job, nullptr);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(scheduler_.Load().in_flight_requests, 0);
    EXPECT_EQ(scheduler_.Load().in_flight_bytes, 0);
  }
  EXPECT_EQ(executor_.runs(), 3);
  EXPECT_EQ(executor_.held().started(), 0);
}

TEST_F(BatchingSchedulerRunTest, DoneThatSubmitsAgainDoesNotNest) {
  std::vector<std::string> order;
  auto inner = MakeJob([&](JobResult) { order.emplace_back("inner done"); });
  auto outer = MakeJob([&](JobResult) {
    ASSERT_TRUE(scheduler_.Submit(inner).ok());
    order.emplace_back("outer done");
  });
  ASSERT_TRUE(scheduler_.Submit(outer).ok());
  EXPECT_EQ(executor_.runs(), 1);
  EXPECT_EQ(order, std::vector<std::string>{"outer done"});
  ASSERT_EQ(executor_.held().running(), 1);
  executor_.held().Finish();
  EXPECT_EQ(order.back(), "inner done");
  // Once the outer one is over, jobs are run again.
  auto next = MakeJob([](JobResult) {});
  ASSERT_TRUE(scheduler_.Submit(next).ok());
  EXPECT_EQ(executor_.runs(), 2);
}

TEST_F(BatchingSchedulerRunTest, WhatWaitedForASlotIsStartedNotRun) {
  // The only slot is taken by a job of a nested Submit; the next one has to wait for it.
  auto held = MakeJob([](JobResult) {});
  auto first = MakeJob([&](JobResult) { ASSERT_TRUE(scheduler_.Submit(held).ok()); });
  ASSERT_TRUE(scheduler_.Submit(first).ok());
  int ended = 0;
  auto waiting = MakeJob([&](JobResult) { ++ended; });
  ASSERT_TRUE(scheduler_.Submit(waiting).ok());
  EXPECT_EQ(scheduler_.Load().queued_requests, 1);
  executor_.held().Finish();
  EXPECT_EQ(executor_.runs(), 1);
  EXPECT_EQ(ended, 0);
  ASSERT_EQ(executor_.held().running(), 1);
  executor_.held().Finish();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace norm::server
