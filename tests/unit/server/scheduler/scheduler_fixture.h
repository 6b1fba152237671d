// A BatchingScheduler over fake executors and a fake clock, driven by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/scheduler/batching_scheduler.h"
#include "tests/support/fake_batch_executor.h"
#include "tests/support/fake_clock.h"
#include "tests/support/job_builder.h"

namespace norm::server {

class SchedulerFixture : public testing::Test {
 protected:
  using Outcome = std::shared_ptr<test::JobOutcome>;

  SchedulerFixture() { options_.reaping = Reaping::kByCaller; }

  ~SchedulerFixture() override {
    for (const auto& executor : executors_) {
      while (executor->running() > 0) {
        executor->Finish();
      }
    }
    scheduler_.reset();
    for (const Outcome& outcome : accepted_) {
      EXPECT_EQ(outcome->calls(), 1) << "a job ended " << outcome->calls() << " times";
    }
  }

  test::FakeBatchExecutor& AddExecutor(test::FakeBatchExecutorOptions options = {}) {
    executors_.push_back(std::make_unique<test::FakeBatchExecutor>(std::move(options)));
    return *executors_.back();
  }

  /// Made at the first use, with the executors and options of that moment.
  BatchingScheduler& scheduler() {
    if (scheduler_ == nullptr) {
      std::vector<BatchExecutor*> executors;
      for (const auto& executor : executors_) {
        executors.push_back(executor.get());
      }
      scheduler_ = std::make_unique<BatchingScheduler>(executors, options_, clock_, metrics_);
    }
    return *scheduler_;
  }
  void DestroyScheduler() { scheduler_.reset(); }

  /// Submits a job that must be accepted.
  Outcome Submit(test::JobBuilder builder) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto job = builder.Build(outcome);
    const absl::Status status = scheduler().Submit(job);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(job, nullptr);
    accepted_.push_back(outcome);
    return outcome;
  }
  Outcome SubmitRows(int64_t rows) {
    return Submit(test::JobBuilder(test::RmsNormProblem(rows, 4)));
  }
  Outcome SubmitDue(absl::Duration due) {
    return Submit(test::JobBuilder(test::RmsNormProblem(1, 4)).Deadline(clock_.Now() + due));
  }

  /// Submits a job that must be refused and stay with the caller.
  absl::Status Refused(test::JobBuilder builder) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto job = builder.Build(outcome);
    const absl::Status status = scheduler().Submit(job);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(job, nullptr);
    EXPECT_EQ(outcome->calls(), 0);
    return status;
  }

  static std::vector<int64_t> RowsOf(const Batch& batch) {
    std::vector<int64_t> rows;
    for (const auto& job : batch.jobs) {
      rows.push_back(job->problem.rows);
    }
    return rows;
  }

  test::FakeClock clock_;
  BatchingSchedulerOptions options_;
  Metrics metrics_{{"fake"}, BatchCloseReasonNames()};
  std::vector<std::unique_ptr<test::FakeBatchExecutor>> executors_;
  std::vector<Outcome> accepted_;

 private:
  std::unique_ptr<BatchingScheduler> scheduler_;
};

}  // namespace norm::server
