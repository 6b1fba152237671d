#include "tests/unit/server/device/executor_conformance.h"

#include <gmock/gmock.h>

#include <future>
#include <random>
#include <thread>

#include "server/scheduler/batching_scheduler.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {

using Role = TensorRole;
using test::ProblemInputs;

constexpr int64_t kMib = int64_t{1} << 20;

std::vector<JobResult> ExecutorConformanceTest::Run(std::vector<test::JobBuilder> builders,
                                                    std::vector<int64_t> segment_jobs) {
  auto batch = std::make_unique<Batch>();
  batch->segment_jobs = std::move(segment_jobs);
  for (test::JobBuilder& builder : builders) {
    batch->jobs.push_back(builder.Build(nullptr));
  }
  std::promise<std::unique_ptr<Batch>> promise;
  executor().Start(std::move(batch),
                   [&](std::unique_ptr<Batch> done) { promise.set_value(std::move(done)); });
  batch = promise.get_future().get();
  EXPECT_EQ(batch->results.size(), builders.size());
  return std::move(batch->results);
}

static NormProblem WithDType(NormProblem problem, DType dtype, DType weight_dtype) {
  problem.dtype = dtype;
  problem.weight_dtype = weight_dtype;
  return problem;
}

std::vector<NormProblem> EveryComputation(DType dtype, DType weight_dtype) {
  std::vector<NormProblem> problems;
  for (const NormProblem& plain : {test::RmsNormProblem(7, 33), test::LayerNormProblem(5, 130)}) {
    NormProblem forward = WithDType(plain, dtype, weight_dtype);
    problems.push_back(forward);
    forward.inputs.Add(Role::kResidual);
    forward.outputs.Add(Role::kResidualSum);
    forward.outputs.Add(Role::kRstd);
    if (plain.op == Op::kLayerNorm) {
      forward.outputs.Add(Role::kMean);
    } else {
      forward.weight_offset = 1.0;
    }
    problems.push_back(forward);
    NormProblem backward = WithDType(plain, dtype, weight_dtype);
    backward.direction = Direction::kBackward;
    backward.inputs = test::Roles({Role::kDy, Role::kX, Role::kWeight, Role::kDresidualSum});
    backward.outputs = test::Roles({Role::kDx, Role::kDweight});
    if (plain.op == Op::kLayerNorm) {
      backward.outputs.Add(Role::kDbias);
    }
    problems.push_back(backward);
  }
  for (const BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    for (const int64_t spatial : {1, 15}) {
      const NormProblem inference =
          WithDType(test::BatchNormInferenceProblem({6, 5, spatial, layout}), dtype, weight_dtype);
      problems.push_back(inference);
      NormProblem training = inference;
      training.batch_norm_mode = BatchNormMode::kTraining;
      training.outputs =
          test::Roles({Role::kY, Role::kMean, Role::kRstd, Role::kRunningMean, Role::kRunningVar});
      problems.push_back(training);
      NormProblem backward = inference;
      backward.direction = Direction::kBackward;
      backward.inputs.Add(Role::kDy);
      backward.inputs =
          test::Roles({Role::kDy, Role::kX, Role::kWeight, Role::kRunningMean, Role::kRunningVar});
      backward.outputs = test::Roles({Role::kDx, Role::kDweight, Role::kDbias});
      problems.push_back(backward);
      backward.batch_norm_mode = BatchNormMode::kTraining;
      backward.inputs = test::Roles({Role::kDy, Role::kX, Role::kWeight});
      problems.push_back(backward);
    }
  }
  return problems;
}

namespace {

TEST_P(ExecutorConformanceTest, EveryComputationMatchesTheOracle) {
  Make(256 * kMib);
  uint32_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    for (const NormProblem& problem : EveryComputation(dtype, dtype)) {
      const ProblemInputs inputs = test::RandomInputs(problem, seed++);
      test::ExpectMatchesOracle(inputs, RunAlone(inputs));
    }
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const NormProblem& problem : EveryComputation(dtype, DType::kF32)) {
      const ProblemInputs inputs = test::RandomInputs(problem, seed++);
      test::ExpectMatchesOracle(inputs, RunAlone(inputs));
    }
  }
}

TEST_P(ExecutorConformanceTest, LargeProblemsMatchTheOracle) {
  Make(1024 * kMib);
  const ProblemInputs rows = test::RandomInputs(test::LayerNormProblem(1500, 1023), 1);
  test::ExpectMatchesOracle(rows, RunAlone(rows));
  NormProblem training = test::BatchNormInferenceProblem({16, 40, 33 * 33});
  training.batch_norm_mode = BatchNormMode::kTraining;
  training.inputs = test::Roles({Role::kX, Role::kWeight, Role::kBias});
  const ProblemInputs planes = test::RandomInputs(training, 2);
  test::ExpectMatchesOracle(planes, RunAlone(planes));
}

TEST_P(ExecutorConformanceTest, RunGivesTheBitsOfStartFromSeveralThreads) {
  Make(256 * kMib);
  std::vector<ProblemInputs> inputs;
  std::vector<JobResult> expected;
  for (const NormProblem& problem : EveryComputation(DType::kBF16, DType::kF32)) {
    inputs.push_back(test::RandomInputs(problem, static_cast<uint32_t>(inputs.size() + 1)));
    expected.push_back(RunAlone(inputs.back()));
  }
  // One batch by itself, then as many at a time as the executor has slots.
  const auto run_all = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto batch = std::make_unique<Batch>();
      batch->jobs.push_back(test::BuilderFor(inputs[i]).Build(nullptr));
      std::promise<std::unique_ptr<Batch>> promise;
      executor().Run(std::move(batch),
                     [&](std::unique_ptr<Batch> done) { promise.set_value(std::move(done)); });
      batch = promise.get_future().get();
      ASSERT_EQ(batch->results.size(), 1U);
      test::ExpectSameBits(inputs[i], expected[i], batch->results[0]);
    }
  };
  run_all();
  std::vector<std::thread> callers;
  for (int i = 0; i < executor().slots(); ++i) {
    callers.emplace_back(run_all);
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  expected.clear();
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

/// `count` jobs that may be merged: equal parameters, other rows.
std::vector<ProblemInputs> MergeableJobs(const NormProblem& base, int count) {
  std::mt19937 random(7);
  std::vector<ProblemInputs> jobs;
  for (int i = 0; i < count; ++i) {
    NormProblem problem = base;
    const int64_t more = std::uniform_int_distribution<int64_t>(0, 9)(random);
    if (base.op == Op::kBatchNorm) {
      problem.batch_norm_shape.batch = more;
      problem.rows = more * problem.batch_norm_shape.spatial;
    } else {
      problem.rows = more;
    }
    jobs.push_back(test::RandomInputs(problem, static_cast<uint32_t>(i + 100)));
    for (const Role role : {Role::kWeight, Role::kBias, Role::kRunningMean, Role::kRunningVar}) {
      jobs.back().bytes[static_cast<size_t>(role)] = jobs.front().bytes[static_cast<size_t>(role)];
    }
  }
  return jobs;
}

TEST_P(ExecutorConformanceTest, MergedWithThirtyOneOthersIsBitEqualToAlone) {
  Make(256 * kMib);
  std::vector<NormProblem> bases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t hidden : {1, 31, 768, 4097}) {
      NormProblem rms = WithDType(test::RmsNormProblem(1, hidden), dtype, DType::kF32);
      rms.outputs.Add(Role::kRstd);
      bases.push_back(rms);
      NormProblem layer = WithDType(test::LayerNormProblem(1, hidden), dtype, dtype);
      layer.inputs.Add(Role::kResidual);
      layer.outputs.Add(Role::kResidualSum);
      layer.outputs.Add(Role::kMean);
      bases.push_back(layer);
    }
    for (const BatchNormShape& shape : {BatchNormShape{1, 7, 1, BatchNormLayout::kNchw},
                                        BatchNormShape{1, 7, 9, BatchNormLayout::kNchw},
                                        BatchNormShape{1, 65, 9, BatchNormLayout::kNhwc}}) {
      bases.push_back(WithDType(test::BatchNormInferenceProblem(shape), dtype, DType::kF32));
    }
  }
  for (const NormProblem& base : bases) {
    const std::vector<ProblemInputs> jobs = MergeableJobs(base, 32);
    std::vector<test::JobBuilder> builders;
    for (const ProblemInputs& job : jobs) {
      builders.push_back(test::BuilderFor(job).RunBytes(1000));
    }
    const std::vector<JobResult> merged = Run(std::move(builders));
    for (size_t j = 0; j < jobs.size(); ++j) {
      test::ExpectSameBits(jobs[j], merged[j], RunAlone(jobs[j]));
    }
  }
}

TEST_P(ExecutorConformanceTest, EmptyTensorsGiveEmptyResultsAndZeroGradients) {
  Make(16 * kMib);
  const JobResult forward = RunAlone(test::RandomInputs(test::LayerNormProblem(0, 64), 1));
  ASSERT_TRUE(forward.status.ok()) << forward.status;
  EXPECT_EQ(forward.outputs[static_cast<size_t>(Role::kY)].size_bytes, 0);
  NormProblem backward = test::RmsNormProblem(0, 64);
  backward.direction = Direction::kBackward;
  backward.inputs = test::Roles({Role::kDy, Role::kX, Role::kWeight});
  backward.outputs = test::Roles({Role::kDx, Role::kDweight});
  const JobResult gradients = RunAlone(test::RandomInputs(backward, 2));
  ASSERT_TRUE(gradients.status.ok()) << gradients.status;
  EXPECT_EQ(test::OutputBytes(gradients, Role::kDweight), std::string(64 * 4, '\0'));
}

TEST_P(ExecutorConformanceTest, ResultsHoldTheirMemoryAndNothingElseDoes) {
  Make(64 * kMib);
  const ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(100, 1000), 1);
  JobResult result = RunAlone(inputs);
  EXPECT_GE(under_test_.staging().used_bytes, 100 * 1000 * 4);
  EXPECT_LE(under_test_.staging().used_bytes, 2 * SlabBytes(100 * 1000 * 4));
  test::ExpectMatchesOracle(inputs, result);
  std::shared_ptr<const void> kept = result.outputs[static_cast<size_t>(Role::kY)].owner;
  result = {};
  EXPECT_GT(under_test_.staging().used_bytes, 0);
  kept.reset();
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
  EXPECT_EQ(under_test_.device().used_bytes, 0);
}

TEST_P(ExecutorConformanceTest, ResultsMayOutliveTheExecutor) {
  Make(64 * kMib);
  const ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(3, 100), 1);
  const JobResult result = RunAlone(inputs);
  under_test_.executor.reset();
  test::ExpectMatchesOracle(inputs, result);
}

TEST_P(ExecutorConformanceTest, ManyShapesStayWithinTheBudget) {
  constexpr int64_t kBudget = 64 * kMib;
  Make(kBudget);
  std::mt19937 random(56);
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t i = 1; i <= 300; ++i) {
      const int64_t hidden = std::uniform_int_distribution<int64_t>(1, 512)(random);
      const JobResult result = Run({test::JobBuilder(test::RmsNormProblem(i * 7, hidden))})[0];
      EXPECT_TRUE(result.status.ok()) << result.status;
      const PoolUsage usage = under_test_.staging();
      EXPECT_LE(usage.used_bytes + usage.free_bytes, kBudget);
    }
  }
  EXPECT_LE(under_test_.device().used_bytes + under_test_.device().free_bytes, kBudget);
  EXPECT_EQ(under_test_.device().used_bytes, 0);
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

TEST_P(ExecutorConformanceTest, MoreThanTheMemoryIsResourceExhaustedAndTheNextOneWorks) {
  Make(16 * kMib);
  const JobResult refused = Run({test::JobBuilder(test::RmsNormProblem(5000, 1000))})[0];
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  const ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(4, 4), 1);
  test::ExpectMatchesOracle(inputs, RunAlone(inputs));
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

TEST_P(ExecutorConformanceTest, MemoryHeldByResultsMakesTheNextOneUnavailable) {
  Make(16 * kMib);
  std::vector<JobResult> held;
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    held.push_back(Run({test::JobBuilder(test::RmsNormProblem(1024, 512))})[0]);
    status = held.back().status;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
  held.clear();
  EXPECT_TRUE(Run({test::JobBuilder(test::RmsNormProblem(1024, 512))})[0].status.ok());
}

TEST_P(ExecutorConformanceTest, AJobOfTheWrongSizeFailsAlone) {
  Make(16 * kMib);
  const std::vector<ProblemInputs> jobs = MergeableJobs(test::RmsNormProblem(1, 16), 3);
  std::vector<test::JobBuilder> builders;
  for (const ProblemInputs& job : jobs) {
    builders.push_back(test::BuilderFor(job));
  }
  builders[1].Input(Role::kX, std::string(3, 'x'));
  const std::vector<JobResult> results = Run(std::move(builders));
  test::ExpectMatchesOracle(jobs[0], results[0]);
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInternal);
  test::ExpectMatchesOracle(jobs[2], results[2]);
}

TEST_P(ExecutorConformanceTest, CopiesEachInputOnceAndNoOutput) {
  Make(256 * kMib);
  const auto copied_by = [&](std::vector<test::JobBuilder> builders) {
    const int64_t before = under_test_.host_copied_bytes();
    for (const JobResult& result : Run(std::move(builders))) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
    return under_test_.host_copied_bytes() - before;
  };
  for (const int64_t rows : {3, 300, 30'000}) {
    const NormProblem problem = test::LayerNormProblem(rows, 200);
    const int64_t x_bytes = TensorBytes(problem, Role::kX);
    EXPECT_EQ(copied_by({test::JobBuilder(problem)}), x_bytes + ParameterBytes(problem));
    // Of concatenated jobs the parameters come once.
    EXPECT_EQ(copied_by({test::JobBuilder(problem), test::JobBuilder(problem)}),
              2 * x_bytes + ParameterBytes(problem));
  }
}

TEST_P(ExecutorConformanceTest, TimesTheStages) {
  Make(256 * kMib);
  const JobResult result = Run({test::JobBuilder(test::RmsNormProblem(4096, 1024))})[0];
  EXPECT_EQ(result.timing.copy_in > absl::ZeroDuration(), under_test_.times_copy_in);
  EXPECT_GT(result.timing.kernel, absl::ZeroDuration());
}

TEST_P(ExecutorConformanceTest, CountsExecutions) {
  Make(16 * kMib);
  Run({test::JobBuilder(test::RmsNormProblem(3, 4)), test::JobBuilder(test::RmsNormProblem(2, 4))});
  EXPECT_EQ(metrics_.totals().executions, 1);
  EXPECT_EQ(metrics_.totals().rows, 5);
}

TEST_P(ExecutorConformanceTest, DestructionFinishesWhatWasStarted) {
  Make(64 * kMib);
  constexpr int kBatches = 20;
  std::atomic<int> ok{0};
  for (int i = 0; i < kBatches; ++i) {
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::JobBuilder(test::RmsNormProblem(64, 256)).Build(nullptr));
    executor().Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
      ok.fetch_add(done->results.at(0).status.ok() ? 1 : 0);
    });
  }
  under_test_.executor.reset();
  EXPECT_EQ(ok.load(), kBatches);
}

TEST_P(ExecutorConformanceTest, ConcurrentMixedTrafficThroughTheSchedulerIsRight) {
  Make(512 * kMib);
  BatchingScheduler scheduler({&executor()}, {}, Clock::Real(), metrics_);
  constexpr int kThreads = 4;
  constexpr int kRounds = 3;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<ProblemInputs> sent;
        std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
        uint32_t seed = static_cast<uint32_t>(t * 1000 + round * 100);
        const DType dtype = static_cast<DType>((t + round) % kDTypeCount);
        for (const NormProblem& problem : EveryComputation(dtype, dtype)) {
          sent.push_back(test::RandomInputs(problem, seed++ % 3));  // some merge, some cannot
          outcomes.push_back(std::make_shared<test::JobOutcome>());
          auto job = test::BuilderFor(sent.back()).RunBytes(333).Build(outcomes.back());
          const absl::Status status = scheduler.Submit(job);
          EXPECT_TRUE(status.ok()) << status;
        }
        for (size_t i = 0; i < sent.size(); ++i) {
          test::ExpectMatchesOracle(sent[i], outcomes[i]->Await());
        }
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  ASSERT_TRUE(scheduler.Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(under_test_.staging().used_bytes, 0);
}

}  // namespace
}  // namespace norm::server
