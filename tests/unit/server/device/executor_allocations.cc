#include "tests/unit/server/device/executor_allocations.h"

#include <gtest/gtest.h>

#include <memory>
#include <semaphore>
#include <utility>
#include <vector>

#include "tests/support/allocation_count.h"
#include "tests/support/job_builder.h"

namespace norm::test {

using server::Batch;

double AllocationsPerBatch(server::BatchExecutor& executor, const server::NormProblem& problem,
                           int segments, int measured) {
  const int warm_up = measured / 4;
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < warm_up + measured; ++i) {
    auto batch = std::make_unique<Batch>();
    for (int segment = 0; segment < segments; ++segment) {
      batch->jobs.push_back(JobBuilder(problem).Build(nullptr));
    }
    batch->segment_jobs.assign(static_cast<size_t>(segments), 1);
    batches.push_back(std::move(batch));
  }
  int64_t before = 0;
  std::binary_semaphore done(0);
  for (int i = 0; i < warm_up + measured; ++i) {
    if (i == warm_up) {
      before = AllocationCount();
    }
    std::unique_ptr<Batch>& batch = batches[static_cast<size_t>(i)];
    executor.Start(std::move(batch), [&](std::unique_ptr<Batch> ended) {
      batch = std::move(ended);
      done.release();
    });
    done.acquire();
    for (server::JobResult& result : batch->results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      result.outputs = {};
    }
  }
  return static_cast<double>(AllocationCount() - before) / measured;
}

void ExpectFewAllocations(server::BatchExecutor& executor) {
  constexpr double kBound = 1.5;
  // The CUDA kernels make lists of the segments of a backward, which grow.
  constexpr double kBackwardBound = 40;
  server::NormProblem backward = RmsNormProblem(4, 256);
  backward.direction = Direction::kBackward;
  backward.inputs = Roles({server::TensorRole::kX, server::TensorRole::kDy});
  backward.outputs = Roles({server::TensorRole::kDx});
  for (const int segments : {1, 8, 40}) {
    const auto allocations = [&](const server::NormProblem& problem) {
      return AllocationsPerBatch(executor, problem, segments, 100);
    };
    EXPECT_LE(allocations(RmsNormProblem(4, 256)), kBound) << segments;
    EXPECT_LE(allocations(LayerNormProblem(40, 1024)), kBound) << segments;
    EXPECT_LE(allocations(backward), kBackwardBound) << segments;
  }
  // Gathered in pieces, by several threads, in slices.
  EXPECT_LE(AllocationsPerBatch(executor, LayerNormProblem(3000, 1024), 1, 20), kBound);
}

}  // namespace norm::test
