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
    absl::StatusOr<InputMemory> memory = executor().LeaseInput(kMib);
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
      std::byte* const at = memory->bytes.get() + offset;
      std::memcpy(at, inputs.bytes[i].data(), inputs.bytes[i].size());
      input.runs = {absl::MakeConstSpan(at, inputs.bytes[i].size())};
      input.page_locked = true;
      offset += Aligned(input.size_bytes);
    }
    const int64_t before = under_test_.host_copied_bytes();
    std::promise<std::unique_ptr<Batch>> promise;
    executor().Start(std::move(batch),
                     [&](std::unique_ptr<Batch> done) { promise.set_value(std::move(done)); });
    batch = promise.get_future().get();
    const JobResult& result = batch->results.at(0);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(under_test_.host_copied_bytes() - before, gathered);
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      if (!problem.outputs.Has(static_cast<TensorRole>(i))) continue;
      EXPECT_TRUE(test::OutputBytes(result, static_cast<TensorRole>(i)) ==
                  test::OutputBytes(expected, static_cast<TensorRole>(i)))
          << TensorRoleName(static_cast<TensorRole>(i));
    }
  }
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

TEST_P(ExecutorConformanceTest, LeasedInputsLeaveRoomForBatches) {
  Make(16 * kMib);
  absl::StatusOr<InputMemory> first = executor().LeaseInput(5 * kMib);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(executor().LeaseInput(5 * kMib).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Run({test::JobBuilder(test::RmsNormProblem(512, 512))})[0].status.ok());
  first = InputMemory();
  EXPECT_TRUE(executor().LeaseInput(5 * kMib).ok());
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
  EXPECT_EQ(executor().LeaseInput(17 * kMib).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace norm::server
