#include "server/device/cpu_batch_executor.h"

#include <future>
#include <thread>

#include "server/device/cpu_kernel_call.h"
#include "tests/unit/server/device/executor_conformance.h"

namespace norm::server {
namespace {

ExecutorUnderTest Make(int slots, int kernel_threads, int64_t memory_bytes, Metrics& metrics) {
  CpuBatchExecutorOptions options;
  options.slots = slots;
  options.kernel_threads = kernel_threads;
  options.memory_budget_bytes = memory_bytes;
  auto executor = std::make_unique<CpuBatchExecutor>(options, metrics);
  const auto usage = [cpu = executor.get()] { return cpu->memory_usage(); };
  const auto copied = [cpu = executor.get()] { return cpu->host_copied_bytes(); };
  return {std::move(executor), usage, usage, copied};
}

INSTANTIATE_TEST_SUITE_P(CpuBatchExecutor, ExecutorConformanceTest,
                         testing::Values(ExecutorCase{"OneSlotOneThread",
                                                      [](int64_t memory_bytes, Metrics& metrics) {
                                                        return Make(1, 1, memory_bytes, metrics);
                                                      }},
                                         ExecutorCase{"TwoSlotsThreeThreads",
                                                      [](int64_t memory_bytes, Metrics& metrics) {
                                                        return Make(2, 3, memory_bytes, metrics);
                                                      }}),
                         [](const auto& which) { return which.param.name; });

/// What a batch of this problem alone asks the kernels for.
int64_t WorkspaceOfABatch(const NormProblem& problem) {
  Batch batch;
  batch.jobs.push_back(test::JobBuilder(problem).Build(nullptr));
  BatchLayout layout;
  MakeBatchLayout(batch, 0, layout);
  const MemorySource memory = HostMemory();
  const auto inputs = *memory(layout.input_bytes);
  const auto outputs = *memory(layout.output_bytes);
  EXPECT_EQ(OutputSlabBytes(problem), layout.output_bytes);
  KernelCall call;
  AddSegments(inputs.get(), outputs.get(), layout, call);
  return call.empty() ? -1 : static_cast<int64_t>(CpuWorkspaceBytes(call));
}

TEST(CpuBatchExecutorTest, KnowsTheWorkspaceOfAProblemBeforehand) {
  Metrics metrics({"cpu"}, BatchCloseReasonNames());
  const CpuBatchExecutor executor({}, metrics);
  int with_workspace = 0;
  for (const NormProblem& problem : EveryComputation(DType::kF32, DType::kF32)) {
    const int64_t expected = WorkspaceOfABatch(problem);
    EXPECT_EQ(executor.WorkspaceBytes(problem), expected)
        << OpName(problem.op) << " " << DirectionName(problem.direction);
    with_workspace += expected > 0 ? 1 : 0;
  }
  EXPECT_GT(with_workspace, 0);
  NormProblem refused = test::RmsNormProblem(2, 3);
  refused.eps = -1;
  EXPECT_EQ(executor.WorkspaceBytes(refused), 0);
}

TEST(CpuBatchExecutorTest, ThreadsDoNotChangeBits) {
  Metrics metrics({"cpu"}, BatchCloseReasonNames());
  const test::ProblemInputs inputs = test::RandomInputs(test::LayerNormProblem(999, 515), 3);
  std::string expected;
  for (const int threads : {1, 2, 5}) {
    CpuBatchExecutorOptions options;
    options.kernel_threads = threads;
    options.parallel_bytes = 0;
    CpuBatchExecutor executor(options, metrics);
    auto outcome = std::make_shared<test::JobOutcome>();
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    executor.Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
    const std::string y = test::OutputBytes(outcome->Await(), TensorRole::kY);
    EXPECT_FALSE(y.empty());
    EXPECT_TRUE(expected.empty() || y == expected) << threads;
    expected = y;
  }
}

TEST(CpuBatchExecutorTest, RunComputesASmallBatchOnItsCallersThreadAndALargeOneNot) {
  Metrics metrics({"cpu"}, BatchCloseReasonNames());
  CpuBatchExecutorOptions options;
  const int64_t large_rows = options.parallel_bytes / 1024;  // of 1 KiB, in and out
  CpuBatchExecutor executor(options, metrics);
  const auto thread_of = [&](int64_t rows) {
    std::promise<std::thread::id> thread;
    auto batch = std::make_unique<Batch>();
    const test::ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(rows, 128), 1);
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    executor.Run(std::move(batch), [&](std::unique_ptr<Batch> done) {
      EXPECT_TRUE(done->results.at(0).status.ok());
      thread.set_value(std::this_thread::get_id());
    });
    return thread.get_future().get();
  };
  EXPECT_EQ(thread_of(1), std::this_thread::get_id());
  EXPECT_NE(thread_of(large_rows), std::this_thread::get_id());
  EXPECT_EQ(thread_of(1), std::this_thread::get_id());
}

}  // namespace
}  // namespace norm::server
