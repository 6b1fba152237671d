#include "server/device/cuda_batch_executor.h"

#include "tests/unit/server/device/executor_conformance.h"

namespace norm::server {
namespace {

CudaBatchExecutorOptions Options(int slots, int64_t memory_bytes) {
  CudaBatchExecutorOptions options;
  options.slots = slots;
  options.pinned_budget_bytes = memory_bytes;
  options.device_budget_bytes = memory_bytes;
  return options;
}

ExecutorUnderTest Make(int slots, int64_t memory_bytes, Metrics& metrics) {
  auto executor = CudaBatchExecutor::Create(Options(slots, memory_bytes), metrics);
  EXPECT_TRUE(executor.ok()) << executor.status();
  const auto* cuda = executor->get();
  return {*std::move(executor), [cuda] { return cuda->pinned_usage(); },
          [cuda] { return cuda->device_usage(); }};
}

INSTANTIATE_TEST_SUITE_P(CudaBatchExecutor, ExecutorConformanceTest,
                         testing::Values(ExecutorCase{"OneSlot",
                                                      [](int64_t memory_bytes, Metrics& metrics) {
                                                        return Make(1, memory_bytes, metrics);
                                                      }},
                                         ExecutorCase{"ThreeSlots",
                                                      [](int64_t memory_bytes, Metrics& metrics) {
                                                        return Make(3, memory_bytes, metrics);
                                                      }}),
                         [](const auto& which) { return which.param.name; });

TEST(CudaBatchExecutorTest, ADeviceOutOfRangeIsAnError) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  CudaBatchExecutorOptions options = Options(1, 1 << 20);
  options.ordinal = 1000;
  EXPECT_FALSE(CudaBatchExecutor::Create(options, metrics).ok());
}

TEST(CudaBatchExecutorTest, MoreDeviceMemoryThanThereIsEndsThatRequestAlone) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  // The budgets promise more than any card has: the allocation itself is refused.
  auto created = CudaBatchExecutor::Create(Options(1, int64_t{1} << 44), metrics);
  ASSERT_TRUE(created.ok()) << created.status();
  CudaBatchExecutor& executor = **created;
  const auto run = [&](const NormProblem& problem) {
    auto outcome = std::make_shared<test::JobOutcome>();
    auto batch = std::make_unique<Batch>();
    auto job = std::make_unique<Job>();
    job->problem = problem;
    batch->jobs.push_back(std::move(job));
    executor.Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
    return outcome->Await().status;
  };
  EXPECT_EQ(run(test::RmsNormProblem(int64_t{1} << 30, 1 << 10)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(executor.healthy());
  EXPECT_EQ(executor.device_usage().used_bytes, 0);
  const test::ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(3, 5), 1);
  auto outcome = std::make_shared<test::JobOutcome>();
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
  executor.Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
    outcome->Finish(std::move(done->results.at(0)));
  });
  test::ExpectMatchesOracle(inputs, outcome->Await());
}

}  // namespace
}  // namespace norm::server
