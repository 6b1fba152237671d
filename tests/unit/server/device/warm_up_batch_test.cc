// What executors compute before their first request: every op, and nothing that a kernel refuses.
#include "server/device/warm_up_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <set>
#include <tuple>

#include "server/device/cpu_batch_executor.h"

namespace norm::server {
namespace {

TEST(WarmUpBatchTest, CoversEveryOpDirectionModeAndDType) {
  std::set<std::tuple<Op, Direction, BatchNormMode, DType>> covered;
  for (const NormProblem& problem : WarmUpProblems()) {
    covered.emplace(problem.op, problem.direction, problem.batch_norm_mode, problem.dtype);
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    for (const Op op : {Op::kRmsNorm, Op::kLayerNorm, Op::kBatchNorm}) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        EXPECT_TRUE(covered.contains({op, direction, BatchNormMode::kTraining, dtype}));
      }
    }
    EXPECT_TRUE(
        covered.contains({Op::kBatchNorm, Direction::kForward, BatchNormMode::kInference, dtype}));
  }
}

TEST(WarmUpBatchTest, TakesEveryWayOfAGpu) {
  int64_t smallest = int64_t{1} << 62;
  int64_t largest = 0;
  for (const NormProblem& problem : WarmUpProblems()) {
    smallest = std::min(smallest, ProblemBytes(problem));
    largest = std::max(largest, ProblemBytes(problem));
  }
  EXPECT_LE(smallest, int64_t{128} << 10);  // CudaWays::mapped_bytes
  EXPECT_GE(largest, int64_t{16} << 20);    // CudaWays::sliced_bytes
}

TEST(WarmUpBatchTest, IsComputedAsItIs) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  CpuBatchExecutor executor({.slots = 1}, metrics);
  const std::vector<std::byte> zeros(size_t{32} << 20);
  for (const NormProblem& problem : WarmUpProblems()) {
    std::promise<absl::Status> status;
    executor.Start(WarmUpBatch(problem, zeros), [&](std::unique_ptr<Batch> batch) {
      status.set_value(batch->results.at(0).status);
    });
    const absl::Status ended = status.get_future().get();
    EXPECT_TRUE(ended.ok()) << OpName(problem.op) << " " << DirectionName(problem.direction) << " "
                            << DTypeName(problem.dtype) << ": " << ended;
  }
}

}  // namespace
}  // namespace norm::server
