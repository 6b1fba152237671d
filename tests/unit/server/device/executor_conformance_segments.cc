// What every BatchExecutor must do with batches of several segments.
#include <gmock/gmock.h>

#include "tests/unit/server/device/executor_conformance.h"

namespace norm::server {
namespace {

using Role = TensorRole;
using test::ProblemInputs;

constexpr int64_t kMib = int64_t{1} << 20;

/// Jobs that share a launch with `base`: other parameters, data, eps and rows; for the row ops
/// every second one without optional tensors.
std::vector<ProblemInputs> SegmentJobs(const NormProblem& base, int count) {
  std::vector<ProblemInputs> jobs;
  for (int i = 0; i < count; ++i) {
    NormProblem problem = base;
    problem.eps = base.eps * (1 + i % 3);
    const int64_t size = (i * 7) % 5;
    if (base.op == Op::kBatchNorm) {
      problem.batch_norm_shape.batch = 2 + size;
      problem.rows = problem.batch_norm_shape.batch * problem.batch_norm_shape.spatial;
      problem.momentum = 0.1 * (i % 4);
    } else {
      problem.rows = size;  // none for some
      problem.weight_offset = base.op == Op::kRmsNorm ? i % 4 / 2 : 0;
      if (i % 2 == 1) {
        problem.weight_offset = 0;  // needs a weight
        const bool forward = base.direction == Direction::kForward;
        problem.inputs = forward ? test::Roles({Role::kX}) : test::Roles({Role::kX, Role::kDy});
        problem.outputs = forward ? test::Roles({Role::kY}) : test::Roles({Role::kDx});
      }
    }
    jobs.push_back(test::RandomInputs(problem, static_cast<uint32_t>(i + 500)));
  }
  return jobs;
}

TEST_P(ExecutorConformanceTest, SegmentsOfOneLaunchHaveTheBitsOfJobsAlone) {
  Make(256 * kMib);
  constexpr int kJobs = 70;  // more than the kernels take in one launch
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const NormProblem& base : EveryComputation(dtype, dtype)) {
      const std::vector<ProblemInputs> jobs = SegmentJobs(base, kJobs);
      std::vector<test::JobBuilder> builders;
      for (const ProblemInputs& job : jobs) {
        builders.push_back(test::BuilderFor(job).RunBytes(333));
      }
      const std::vector<JobResult> shared =
          Run(std::move(builders), std::vector<int64_t>(kJobs, 1));
      for (size_t j = 0; j < jobs.size(); ++j) {
        test::ExpectSameBits(jobs[j], shared[j], RunAlone(jobs[j]));
        test::ExpectMatchesOracle(jobs[j], shared[j]);
      }
    }
  }
}

TEST_P(ExecutorConformanceTest, LongRowsAndManyRowsKeepTheirBitsAmongSegments) {
  Make(512 * kMib);
  for (const int64_t hidden : {768, 4097, 16384}) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      NormProblem problem = test::LayerNormProblem(1, hidden);
      problem.dtype = DType::kBF16;
      problem.weight_dtype = DType::kBF16;
      problem.direction = direction;
      if (direction == Direction::kBackward) {
        problem.inputs = test::Roles({Role::kX, Role::kDy, Role::kWeight});
        problem.outputs = test::Roles({Role::kDx, Role::kDweight, Role::kDbias});
      }
      std::vector<ProblemInputs> jobs;
      std::vector<test::JobBuilder> builders;
      for (const int64_t rows : {1, 300, 7, 64}) {
        problem.rows = rows;
        jobs.push_back(test::RandomInputs(problem, static_cast<uint32_t>(rows)));
        builders.push_back(test::BuilderFor(jobs.back()));
      }
      const std::vector<JobResult> shared = Run(std::move(builders), {1, 1, 1, 1});
      for (size_t j = 0; j < jobs.size(); ++j) {
        test::ExpectSameBits(jobs[j], shared[j], RunAlone(jobs[j]));
        test::ExpectMatchesOracle(jobs[j], shared[j]);
      }
    }
  }
}

TEST_P(ExecutorConformanceTest, SegmentsOfSeveralJobsLieBesideOthers) {
  Make(64 * kMib);
  std::vector<ProblemInputs> jobs;
  for (const uint32_t weights : {1, 2, 3}) {
    const size_t leader = jobs.size();
    for (uint32_t i = 0; i < 3; ++i) {
      jobs.push_back(test::RandomInputs(test::LayerNormProblem(1 + i, 65), weights * 10 + i));
      for (const size_t role :
           {static_cast<size_t>(Role::kWeight), static_cast<size_t>(Role::kBias)}) {
        jobs.back().bytes[role] = jobs[leader].bytes[role];
      }
    }
  }
  std::vector<test::JobBuilder> builders;
  for (const ProblemInputs& job : jobs) {
    builders.push_back(test::BuilderFor(job));
  }
  const std::vector<JobResult> shared = Run(std::move(builders), {3, 3, 3});
  EXPECT_EQ(metrics_.totals().executions, 1);
  EXPECT_EQ(metrics_.totals().rows, 3 * (1 + 2 + 3));
  for (size_t j = 0; j < jobs.size(); ++j) {
    test::ExpectSameBits(jobs[j], shared[j], RunAlone(jobs[j]));
    test::ExpectMatchesOracle(jobs[j], shared[j]);
  }
}

TEST_P(ExecutorConformanceTest, ASegmentThatTheKernelsRefuseDoesNotFailItsMates) {
  Make(16 * kMib);
  NormProblem training = test::BatchNormInferenceProblem({4, 6, 5});
  training.batch_norm_mode = BatchNormMode::kTraining;
  training.inputs = test::Roles({Role::kX, Role::kWeight, Role::kBias});
  std::vector<ProblemInputs> jobs;
  std::vector<test::JobBuilder> builders;
  for (uint32_t i = 0; i < 4; ++i) {
    training.eps = i == 1 ? -1.0 : 1e-5;
    jobs.push_back(test::RandomInputs(training, i));
    builders.push_back(test::BuilderFor(jobs.back()));
  }
  builders[2].Input(Role::kX, std::string(3, 'x'));
  const std::vector<JobResult> results = Run(std::move(builders), {1, 1, 1, 1});
  test::ExpectMatchesOracle(jobs[0], results[0]);
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInvalidArgument) << results[1].status;
  EXPECT_EQ(results[2].status.code(), absl::StatusCode::kInternal) << results[2].status;
  test::ExpectMatchesOracle(jobs[3], results[3]);
  const JobResult alone = RunAlone(jobs[1]);
  EXPECT_EQ(alone.status.code(), absl::StatusCode::kInvalidArgument) << alone.status;
}

}  // namespace
}  // namespace norm::server
