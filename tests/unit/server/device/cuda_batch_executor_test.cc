#include "server/device/cuda_batch_executor.h"

#include <cstring>

#include "norm/cuda/pinned_buffer.h"
#include "tests/unit/server/device/executor_conformance.h"

namespace norm::server {
namespace {

CudaBatchExecutorOptions Options(int slots, int64_t memory_bytes) {
  CudaBatchExecutorOptions options;
  options.slots = slots;
  options.pinned_budget_bytes = memory_bytes;
  options.device_budget_bytes = memory_bytes;
  options.prewarm_bytes = int64_t{1} << 20;  // for the time that tests take
  return options;
}

/// Small batches copied like large ones.
CudaWays Staged() {
  CudaWays ways;
  ways.mapped_bytes = 0;
  ways.mapped_output_bytes = 0;
  return ways;
}

/// Every mergeable batch in as many slices as it has rows, or the most there may be.
CudaWays Sliced() {
  CudaWays ways = Staged();
  ways.sliced_bytes = 0;
  ways.slice_bytes = 1;
  return ways;
}

/// Every batch read from device memory, and its results written to mapped memory.
CudaWays MappedOutput() {
  CudaWays ways;
  ways.mapped_bytes = 0;
  ways.mapped_output_bytes = int64_t{1} << 40;
  return ways;
}

/// Every batch in mapped memory.
CudaWays Mapped() {
  CudaWays ways;
  ways.mapped_bytes = int64_t{1} << 40;
  return ways;
}

ExecutorCase CaseOf(const char* name, int slots, const CudaWays& ways) {
  return {name, [slots, ways](int64_t memory_bytes, Metrics& metrics) -> ExecutorUnderTest {
            CudaBatchExecutorOptions options = Options(slots, memory_bytes);
            options.ways = ways;
            auto executor = CudaBatchExecutor::Create(options, metrics);
            EXPECT_TRUE(executor.ok()) << executor.status();
            const auto* cuda = executor->get();
            return {*std::move(executor), [cuda] { return cuda->pinned_usage(); },
                    [cuda] { return cuda->device_usage(); },
                    [cuda] { return cuda->host_copied_bytes(); },
                    /*times_copy_in=*/ways.mapped_bytes < Mapped().mapped_bytes};
          }};
}

INSTANTIATE_TEST_SUITE_P(CudaBatchExecutor, ExecutorConformanceTest,
                         testing::Values(CaseOf("Default", 3, {}), CaseOf("Mapped", 2, Mapped()),
                                         CaseOf("MappedOutput", 2, MappedOutput()),
                                         CaseOf("Staged", 1, Staged()),
                                         CaseOf("Sliced", 3, Sliced())),
                         [](const auto& which) { return which.param.name; });

/// Runs one job at a time, each on an executor of its own.
class CudaWaysTest : public testing::Test {
 protected:
  JobResult RunOn(const CudaWays& ways, std::unique_ptr<Job> job) {
    CudaBatchExecutorOptions options = Options(1, int64_t{512} << 20);
    options.ways = ways;
    auto executor = CudaBatchExecutor::Create(options, metrics_);
    EXPECT_TRUE(executor.ok()) << executor.status();
    auto outcome = std::make_shared<test::JobOutcome>();
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(std::move(job));
    (*executor)->Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
    JobResult result = outcome->Await();
    host_copied_bytes_ = (*executor)->host_copied_bytes();
    return result;
  }

  Metrics metrics_{{"device"}, BatchCloseReasonNames()};  // results outlive their executors
  int64_t host_copied_bytes_ = 0;
};

TEST_F(CudaWaysTest, EveryWayGivesTheSameBits) {
  NormProblem rows = test::LayerNormProblem(999, 515);
  rows.inputs.Add(TensorRole::kResidual);
  rows.outputs =
      test::Roles({TensorRole::kY, TensorRole::kResidualSum, TensorRole::kMean, TensorRole::kRstd});
  NormProblem backward = test::LayerNormProblem(999, 515);
  backward.direction = Direction::kBackward;
  backward.inputs = test::Roles({TensorRole::kX, TensorRole::kDy, TensorRole::kWeight});
  backward.outputs = test::Roles({TensorRole::kDx, TensorRole::kDweight, TensorRole::kDbias});
  NormProblem training = test::BatchNormInferenceProblem({9, 33, 77});
  training.batch_norm_mode = BatchNormMode::kTraining;
  training.outputs = test::Roles(
      {TensorRole::kY, TensorRole::kMean, TensorRole::kRunningMean, TensorRole::kRunningVar});
  for (const NormProblem& problem :
       {rows, backward, training, test::BatchNormInferenceProblem({31, 17, 99}),
        test::BatchNormInferenceProblem({31, 17, 99, BatchNormLayout::kNhwc})}) {
    const test::ProblemInputs inputs = test::RandomInputs(problem, 5);
    const auto run = [&](const CudaWays& ways) {
      return RunOn(ways, test::BuilderFor(inputs).RunBytes(5000).Build(nullptr));
    };
    const JobResult mapped = run(Mapped());
    test::ExpectMatchesOracle(inputs, mapped);
    for (const CudaWays& ways : {MappedOutput(), Staged(), Sliced()}) {
      test::ExpectSameBits(inputs, mapped, run(ways));
    }
  }
}

TEST_F(CudaWaysTest, PageLockedInputsAreCopiedByTheDeviceAlone) {
  const NormProblem problem = test::RmsNormProblem(3000, 700);
  const test::ProblemInputs inputs = test::RandomInputs(problem, 3);
  const std::string& x = inputs.bytes[static_cast<size_t>(TensorRole::kX)];
  auto pinned = cuda::PinnedBuffer::Allocate(x.size());
  ASSERT_TRUE(pinned.ok());
  std::memcpy(pinned.value().data(), x.data(), x.size());
  for (const CudaWays& ways : {MappedOutput(), Staged(), Sliced()}) {
    auto job = test::BuilderFor(inputs).Build(nullptr);
    InputTensor& input = job->inputs[static_cast<size_t>(TensorRole::kX)];
    input.page_locked = true;
    // In two runs that do not fit the slices.
    const absl::Span<const std::byte> whole(pinned.value().data(), x.size());
    input.runs = {whole.first(1'000'001), whole.subspan(1'000'001)};
    test::ExpectMatchesOracle(inputs, RunOn(ways, std::move(job)));
    EXPECT_EQ(host_copied_bytes_, ParameterBytes(problem));
  }
}

TEST(CudaBatchExecutorTest, TheFirstRequestsFindTheirMemoryMade) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  CudaBatchExecutorOptions options = Options(3, int64_t{2} << 30);
  options.prewarm_bytes = CudaBatchExecutorOptions().prewarm_bytes;
  auto created = CudaBatchExecutor::Create(options, metrics);
  ASSERT_TRUE(created.ok()) << created.status();
  CudaBatchExecutor& executor = **created;
  EXPECT_EQ(executor.pinned_usage().used_bytes, 0);
  EXPECT_EQ(executor.device_usage().used_bytes, 0);
  EXPECT_EQ(executor.host_copied_bytes(), 0);
  const int64_t pinned = executor.pinned_usage().allocations;
  const int64_t device = executor.device_usage().allocations;
  NormProblem backward = test::RmsNormProblem(4096, 2048);
  backward.direction = Direction::kBackward;
  backward.inputs = test::Roles({TensorRole::kX, TensorRole::kDy, TensorRole::kWeight});
  backward.outputs = test::Roles({TensorRole::kDx, TensorRole::kDweight});
  // Inputs of 64 MiB and parameters; results of all of them are held.
  std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
  for (const NormProblem& problem :
       {test::RmsNormProblem(4096, 4096), backward, test::LayerNormProblem(4096, 4096),
        test::RmsNormProblem(2, 5)}) {
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::JobBuilder(problem).Build(nullptr));
    auto outcome = outcomes.emplace_back(std::make_shared<test::JobOutcome>());
    // The inputs are borrowed from the job, which ends with its batch.
    executor.Start(std::move(batch), [outcome](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
  }
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome->Await().status.ok()) << outcome->Await().status;
  }
  EXPECT_EQ(executor.pinned_usage().allocations, pinned);
  EXPECT_EQ(executor.device_usage().allocations, device);
}

TEST(CudaBatchExecutorTest, BatchesWaitForTheDeviceMemoryOfThoseInFlight) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  CudaBatchExecutorOptions options = Options(3, int64_t{2} << 30);
  // One batch of 8 MiB fits, with a workspace; two do not.
  options.device_budget_bytes = int64_t{16} << 20;
  options.ways = Staged();
  auto created = CudaBatchExecutor::Create(options, metrics);
  ASSERT_TRUE(created.ok()) << created.status();
  CudaBatchExecutor& executor = **created;
  std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
  for (int i = 0; i < 24; ++i) {
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::JobBuilder(test::RmsNormProblem(1024, 1024)).Build(nullptr));
    auto outcome = outcomes.emplace_back(std::make_shared<test::JobOutcome>());
    executor.Start(std::move(batch), [outcome](std::unique_ptr<Batch> done) {
      outcome->Finish(std::move(done->results.at(0)));
    });
  }
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome->Await().status.ok()) << outcome->Await().status;
  }
  // What no other batch holds is not waited for.
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(test::JobBuilder(test::RmsNormProblem(2048, 1536)).Build(nullptr));
  auto outcome = std::make_shared<test::JobOutcome>();
  executor.Start(std::move(batch), [outcome](std::unique_ptr<Batch> done) {
    outcome->Finish(std::move(done->results.at(0)));
  });
  EXPECT_EQ(outcome->Await().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(executor.device_usage().used_bytes, 0);
}

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
