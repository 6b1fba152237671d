// One case per process: a poisoned context stays poisoned.
#include <gtest/gtest.h>

#include "server/device/cuda_batch_executor.h"
#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/device/oracle_check.h"
#include "tests/unit/server/device/poison_context.h"

namespace norm::server {
namespace {

class CudaDeviceLossTest : public testing::Test {
 protected:
  CudaDeviceLossTest() {
    auto executor = CudaBatchExecutor::Create({}, metrics_);
    EXPECT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }

  /// Runs one job through the scheduler; its end, or why it was refused.
  absl::Status Run(BatchingScheduler& scheduler) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto job = test::BuilderFor(inputs_).Build(outcome);
    if (absl::Status refused = scheduler.Submit(job); !refused.ok()) {
      return refused;
    }
    const JobResult& result = outcome->Await();
    if (result.status.ok()) {
      test::ExpectMatchesOracle(inputs_, result);
    }
    return result.status;
  }

  const test::ProblemInputs inputs_ = test::RandomInputs(test::LayerNormProblem(40, 300), 1);
  Metrics metrics_{{"cuda:0"}, BatchCloseReasonNames()};
  std::unique_ptr<CudaBatchExecutor> executor_;
};

TEST_F(CudaDeviceLossTest, TheFirstFailureIsInternalAndLaterOnesUnavailable) {
  BatchingScheduler scheduler({executor_.get()}, {}, Clock::Real(), metrics_);
  ASSERT_TRUE(Run(scheduler).ok());
  ASSERT_TRUE(test::PoisonContext());
  const absl::Status first = Run(scheduler);
  EXPECT_EQ(first.code(), absl::StatusCode::kInternal) << first;
  EXPECT_FALSE(executor_->healthy());
  for (int i = 0; i < 10; ++i) {
    const absl::Status later = Run(scheduler);
    EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
    EXPECT_GT(RetryAfter(later), absl::ZeroDuration());
  }
}

TEST_F(CudaDeviceLossTest, BatchesStartedAfterTheLossEnd) {
  ASSERT_TRUE(test::PoisonContext());
  std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
  for (int i = 0; i < 3; ++i) {
    auto batch = std::make_unique<Batch>();
    outcomes.push_back(std::make_shared<test::JobOutcome>());
    batch->jobs.push_back(test::BuilderFor(inputs_).Build(nullptr));
    executor_->Start(std::move(batch), [outcome = outcomes.back()](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
  }
  int internal = 0;
  for (const auto& outcome : outcomes) {
    const absl::StatusCode code = outcome->Await().status.code();
    EXPECT_TRUE(code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnavailable);
    internal += code == absl::StatusCode::kInternal ? 1 : 0;
  }
  EXPECT_EQ(internal, 1);
}

}  // namespace
}  // namespace norm::server
