// Two GPUs behind one scheduler. An illegal address on one ends the CUDA work of the whole process (two H200s, CUDA 13.0: calls
// on the other device return the same error from then on), so this is an executable of its own, and a device's loss costs no
// other's capacity only between processes (normd --processes).
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "norm/cuda/device_guard.h"
#include "norm/cuda/device_info.h"
#include "server/device/cuda_batch_executor.h"
#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/device/oracle_check.h"
#include "tests/unit/server/device/poison_context.h"

namespace norm::server {
namespace {

constexpr int kJobs = 96;

std::unique_ptr<CudaBatchExecutor> MakeExecutor(int ordinal, Metrics& metrics) {
  CudaBatchExecutorOptions options;
  options.device_name = "cuda:" + std::to_string(ordinal);
  options.device_index = ordinal;
  options.ordinal = ordinal;
  auto executor = CudaBatchExecutor::Create(options, metrics);
  EXPECT_TRUE(executor.ok()) << executor.status();
  return executor.ok() ? *std::move(executor) : nullptr;
}

/// One of several problems that do not merge, so that both devices have work.
test::ProblemInputs InputsOf(int job) {
  return job % 2 == 0 ? test::RandomInputs(test::LayerNormProblem(300, 4096), 1)
                      : test::RandomInputs(test::RmsNormProblem(200, 5000), 2);
}

struct Tally {
  int ok = 0;
  int internal = 0;
  int unavailable = 0;
  int other = 0;
  std::vector<int> by_device = {0, 0};
};

/// Submits every job before it waits for the first.
Tally RunJobs(BatchingScheduler& scheduler) {
  const test::ProblemInputs inputs[] = {InputsOf(0), InputsOf(1)};
  std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
  Tally tally;
  for (int i = 0; i < kJobs; ++i) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto job = test::BuilderFor(inputs[i % 2]).Build(outcome);
    const absl::Status refused = scheduler.Submit(job);
    if (!refused.ok()) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
      ++tally.unavailable;
    }
    outcomes.push_back(refused.ok() ? outcome : nullptr);
  }
  // Jobs of one problem have the same bits, whichever device ran them, when the models are equal.
  std::string bits[2];
  for (int i = 0; i < kJobs; ++i) {
    if (outcomes[static_cast<size_t>(i)] == nullptr) continue;
    const JobResult& result = outcomes[static_cast<size_t>(i)]->Await();
    switch (result.status.code()) {
      case absl::StatusCode::kOk: {
        ++tally.ok;
        ++tally.by_device[result.timing.device == "cuda:1" ? 1 : 0];
        std::string& expected = bits[i % 2];
        if (expected.empty()) {
          test::ExpectMatchesOracle(inputs[i % 2], result);
          expected = test::OutputBytes(result, TensorRole::kY);
        }
        EXPECT_EQ(expected == test::OutputBytes(result, TensorRole::kY), true) << "job " << i;
        break;
      }
      case absl::StatusCode::kInternal:
        ++tally.internal;
        break;
      case absl::StatusCode::kUnavailable:
        ++tally.unavailable;
        break;
      default:
        ++tally.other;
    }
  }
  return tally;
}

TEST(CudaSeveralDevicesTest, WorkSpreadsAndAPoisonedProcessLosesNoJob) {
  const Result<int> count = cuda::DeviceCount();
  if (!count.ok() || count.value() < 2) {
    std::printf("[  SKIPPED ] needs two CUDA devices\n");
    GTEST_SKIP() << "needs two CUDA devices";
  }
  Metrics metrics({"cuda:0", "cuda:1"}, BatchCloseReasonNames());
  const std::unique_ptr<CudaBatchExecutor> first = MakeExecutor(0, metrics);
  const std::unique_ptr<CudaBatchExecutor> second = MakeExecutor(1, metrics);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  BatchingScheduler scheduler({first.get(), second.get()}, {}, Clock::Real(), metrics);

  const Tally both = RunJobs(scheduler);
  EXPECT_EQ(both.ok, kJobs);
  // The least loaded device takes the next job: neither can have had all of them.
  EXPECT_GT(both.by_device[0], 0);
  EXPECT_GT(both.by_device[1], 0);

  {
    const cuda::DeviceGuard device(1);
    ASSERT_TRUE(device.status().ok());
    ASSERT_TRUE(norm_device::PoisonContext());
  }
  // Nobody has told the scheduler: batches that meet the error end INTERNAL, those behind them UNAVAILABLE; each ends.
  const Tally after = RunJobs(scheduler);
  EXPECT_GE(after.internal, 1);
  EXPECT_EQ(after.other, 0);
  EXPECT_EQ(after.ok + after.internal + after.unavailable, kJobs);
  EXPECT_FALSE(second->healthy());
  EXPECT_EQ(scheduler.Load().in_flight_requests, 0);
}

}  // namespace
}  // namespace norm::server
