// Inputs that were put together in an executor's memory before their job existed.
#include <cstring>
#include <future>

#include "tests/unit/server/device/executor_conformance.h"

namespace norm::server {
namespace {

constexpr int64_t kMib = 1 << 20;

int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

TEST_P(ExecutorConformanceTest, LeasedInputsAreTakenFromWhereTheyLie) {
  Make(256 * kMib);
  for (const NormProblem& problem : EveryComputation(DType::kF32, DType::kF32)) {
    const test::ProblemInputs inputs = test::RandomInputs(problem, 9);
    const JobResult expected = RunAlone(inputs);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    Job& job = *batch->jobs.front();
    absl::StatusOr<JobMemory> memory = executor().LeaseMemory(problem, kMib);
    ASSERT_TRUE(memory.ok()) << memory.status();
    int64_t offset = 0;
    int64_t gathered = 0;
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      InputTensor& input = job.inputs[i];
      if (!problem.inputs.Has(static_cast<TensorRole>(i))) continue;
      if (IsParameter(static_cast<TensorRole>(i))) {
        gathered += input.size_bytes;
        continue;
      }
      std::byte* const at = memory->inputs.get() + offset;
      std::memcpy(at, inputs.bytes[i].data(), inputs.bytes[i].size());
      input.runs = {absl::MakeConstSpan(at, inputs.bytes[i].size())};
      input.page_locked = true;
      offset += Aligned(input.size_bytes);
    }
    job.memory = *memory;
    const int64_t before = under_test_.host_copied_bytes();
    std::promise<std::unique_ptr<Batch>> promise;
    executor().Start(std::move(batch),
                     [&](std::unique_ptr<Batch> done) { promise.set_value(std::move(done)); });
    batch = promise.get_future().get();
    const JobResult& result = batch->results.at(0);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(under_test_.host_copied_bytes() - before, gathered);
    const bool forward = problem.direction == Direction::kForward;
    EXPECT_EQ(result.outputs[static_cast<size_t>(forward ? TensorRole::kY : TensorRole::kDx)].owner,
              memory->outputs);
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      if (!problem.outputs.Has(static_cast<TensorRole>(i))) continue;
      EXPECT_TRUE(test::OutputBytes(result, static_cast<TensorRole>(i)) ==
                  test::OutputBytes(expected, static_cast<TensorRole>(i)))
          << TensorRoleName(static_cast<TensorRole>(i));
    }
  }
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

TEST_P(ExecutorConformanceTest, AJobThatBringsItsMemoryEndsWellWhereNoneIsLeft) {
  for (const NormProblem& problem : EveryComputation(DType::kF32, DType::kF32)) {
    Make(8 * kMib);
    const test::ProblemInputs inputs = test::RandomInputs(problem, 3);
    int64_t input_bytes = 0;
    for (const std::string& bytes : inputs.bytes) {
      input_bytes += Aligned(static_cast<int64_t>(bytes.size()));
    }
    absl::StatusOr<JobMemory> memory = executor().LeaseMemory(problem, input_bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    Job& job = *batch->jobs.front();
    std::byte* at = memory->inputs.get();
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      const std::string& bytes = inputs.bytes[i];
      if (bytes.empty()) continue;
      std::memcpy(at, bytes.data(), bytes.size());
      job.inputs[i].runs = {absl::MakeConstSpan(at, bytes.size())};
      job.inputs[i].page_locked = true;
      at += Aligned(static_cast<int64_t>(bytes.size()));
    }
    job.memory = *std::move(memory);
    // Results that nobody takes, until the smallest slab is gone.
    std::vector<JobResult> held;
    for (const int64_t rows : {256, 1}) {
      do {
        held.push_back(std::move(Run({test::JobBuilder(test::RmsNormProblem(rows, 512))})[0]));
      } while (held.back().status.ok());
      EXPECT_EQ(held.back().status.code(), absl::StatusCode::kUnavailable) << held.back().status;
    }
    std::promise<std::unique_ptr<Batch>> promise;
    executor().Start(std::move(batch),
                     [&](std::unique_ptr<Batch> done) { promise.set_value(std::move(done)); });
    batch = promise.get_future().get();
    test::ExpectMatchesOracle(inputs, batch->results.at(0));
  }
}

TEST_P(ExecutorConformanceTest, LeasedMemoryLeavesRoomForBatches) {
  Make(16 * kMib);
  const NormProblem small = test::RmsNormProblem(1, 1);
  absl::StatusOr<JobMemory> first = executor().LeaseMemory(small, 5 * kMib);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(executor().LeaseMemory(small, 5 * kMib).status().code(),
            absl::StatusCode::kUnavailable);
  // Outputs count as well: 4 MiB of them.
  EXPECT_EQ(executor().LeaseMemory(test::RmsNormProblem(1024, 1024), 4096).status().code(),
            absl::StatusCode::kUnavailable);
  // The 1 MiB of results that a batch holds does not.
  auto results = Run({test::JobBuilder(test::RmsNormProblem(512, 512))});
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_TRUE(executor().LeaseMemory(small, 2 * kMib).ok());
  results.clear();
  first = JobMemory();
  EXPECT_TRUE(executor().LeaseMemory(small, 5 * kMib).ok());
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
  EXPECT_EQ(executor().LeaseMemory(small, 17 * kMib).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace norm::server
