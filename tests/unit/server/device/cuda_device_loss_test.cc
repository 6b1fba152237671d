// A poisoned context stays poisoned until the process ends: one case, an executable of its own.
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>

#include "server/device/cuda_batch_executor.h"
#include "server/device/cuda_memory.h"
#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/device/oracle_check.h"
#include "tests/unit/server/device/poison_context.h"

namespace norm::server {
namespace {

/// Runs one job through the scheduler; its end, or why it was refused.
absl::Status RunOne(BatchingScheduler& scheduler, const test::ProblemInputs& inputs) {
  auto outcome = std::make_shared<test::JobOutcome>();
  auto job = test::BuilderFor(inputs).Build(outcome);
  if (absl::Status refused = scheduler.Submit(job); !refused.ok()) {
    return refused;
  }
  const JobResult& result = outcome->Await();
  if (result.status.ok()) {
    test::ExpectMatchesOracle(inputs, result);
  }
  return result.status;
}

TEST(CudaDeviceLossTest, TheFirstFailureIsInternalAndLaterOnesUnavailable) {
  const test::ProblemInputs inputs = test::RandomInputs(test::LayerNormProblem(40, 300), 1);
  Metrics metrics({"cuda:0"}, BatchCloseReasonNames());
  // The first allocation of this size waits.
  constexpr int64_t kHeldBytes = int64_t{8} << 20;
  bool asked = false;
  std::promise<void> held;
  std::promise<void> released;
  CudaBatchExecutorOptions options;
  options.prewarm_bytes = 0;
  options.device_memory = [&, source = DeviceMemory(0)](int64_t bytes) {
    if (bytes == kHeldBytes && !std::exchange(asked, true)) {
      held.set_value();
      released.get_future().wait();
    }
    return source(bytes);
  };
  auto created = CudaBatchExecutor::Create(options, metrics);
  ASSERT_TRUE(created.ok()) << created.status();
  CudaBatchExecutor& executor = **created;
  BatchingScheduler scheduler({&executor}, {}, Clock::Real(), metrics);
  ASSERT_TRUE(RunOne(scheduler, inputs).ok());
  NormProblem without_weight = test::RmsNormProblem(2048, 1024);
  without_weight.inputs = test::Roles({TensorRole::kX});
  auto beside = std::make_shared<test::JobOutcome>();
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(test::JobBuilder(without_weight).Build(nullptr));
  executor.Start(std::move(batch), [beside](std::unique_ptr<Batch> done) {
    beside->Finish(std::move(done->results.at(0)));
  });
  held.get_future().wait();
  ASSERT_TRUE(norm_device::PoisonContext());

  const absl::Status first = RunOne(scheduler, inputs);
  EXPECT_EQ(first.code(), absl::StatusCode::kInternal) << first;
  EXPECT_FALSE(executor.healthy());
  // What another batch was allocating fails as well, and that is not its own failure.
  released.set_value();
  EXPECT_EQ(beside->Await().status.code(), absl::StatusCode::kUnavailable)
      << beside->Await().status;
  EXPECT_GT(RetryAfter(beside->Await().status), absl::ZeroDuration());
  for (int i = 0; i < 10; ++i) {
    const absl::Status later = RunOne(scheduler, inputs);
    EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
    EXPECT_GT(RetryAfter(later), absl::ZeroDuration());
  }

  // Past the scheduler, which would not start them: they end all the same.
  for (int i = 0; i < 5; ++i) {
    auto outcome = std::make_shared<test::JobOutcome>();
    batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    executor.Start(std::move(batch), [outcome](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
    EXPECT_EQ(outcome->Await().status.code(), absl::StatusCode::kUnavailable);
  }

  // Nor does the thread that calls Run see to what a failure leaves.
  std::promise<std::thread::id> end;
  batch = std::make_unique<Batch>();
  batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
  executor.Run(std::move(batch), [&](std::unique_ptr<Batch> done) {
    EXPECT_EQ(done->results.at(0).status.code(), absl::StatusCode::kUnavailable);
    end.set_value(std::this_thread::get_id());
  });
  EXPECT_NE(end.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace norm::server
