// Random sequences of submissions, cancels, time steps, completions and device losses, checked
// against the contract.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using Role = TensorRole;

class BatchingSchedulerPropertyTest : public SchedulerFixture,
                                      public testing::WithParamInterface<int> {
 protected:
  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  test::JobBuilder RandomJob() {
    NormProblem problem = test::RmsNormProblem(Uniform(0, 12), Uniform(1, 2) * 4);
    switch (Uniform(0, 5)) {
      case 0:
        problem.direction = Direction::kBackward;
        break;
      case 1:
        problem.eps = 1e-3;
        break;
      case 2:
        problem = test::BatchNormInferenceProblem(
            {.batch = Uniform(1, 3),
             .channels = 4,
             .spatial = Uniform(1, 3),
             .layout = Uniform(0, 1) == 0 ? BatchNormLayout::kNchw : BatchNormLayout::kNhwc});
        if (Uniform(0, 3) == 0) {
          problem.batch_norm_mode = BatchNormMode::kTraining;
        }
        break;
      default:
        break;
    }
    test::JobBuilder builder(problem);
    builder.Priority(Uniform(0, 3) == 0 ? Priority::kBulk : Priority::kInteractive);
    const std::vector<float> weight(static_cast<size_t>(problem.hidden_size),
                                    static_cast<float>(Uniform(0, 2)));
    builder.Input(Role::kWeight, weight);
    if (Uniform(0, 1) == 0) {
      builder.Deadline(clock_.Now() + absl::Milliseconds(Uniform(-1, 40)));
    }
    if (Uniform(0, 4) == 0) {
      flags_.push_back(std::make_shared<std::atomic<bool>>(false));
      builder.Cancelled(flags_.back());
    }
    return builder;
  }

  struct Accepted {
    Outcome outcome;
    uint64_t flow;
    int64_t bytes;
  };
  /// Of a flow's accepted jobs those that have not ended, their bytes, those of them without a
  /// slot, and the ones that had to give way.
  struct FlowLoad {
    int unended = 0;
    int64_t bytes = 0;
    int waiting = 0;
    int displaced = 0;
  };
  std::array<FlowLoad, 4> LoadOfFlows() {
    std::array<FlowLoad, 4> load;
    for (const Accepted& one : accepted_jobs_) {
      FlowLoad& flow = load[one.flow];
      if (one.outcome->done()) {
        flow.displaced += absl::StrContains(one.outcome->result().status.message(), "equal part");
        continue;
      }
      ++flow.unended;
      flow.bytes += one.bytes;
      ++flow.waiting;
    }
    for (const auto& executor : executors_) {
      for (int i = 0; i < executor->running(); ++i) {
        for (const auto& job : executor->batch(i).jobs) --load[job->flow].waiting;
      }
    }
    return load;
  }

  /// Nobody is refused for want of room below its part, and nobody gives way to one beyond it.
  void CheckFairness(uint64_t flow, const absl::Status& status,
                     const std::array<FlowLoad, 4>& before, const std::array<FlowLoad, 4>& after) {
    int others = 0;
    int displaced = 0;
    for (uint64_t other = 0; other < before.size(); ++other) {
      if (other == flow) continue;
      others += before[other].unended > 0;
      displaced += after[other].displaced - before[other].displaced;
    }
    const int64_t part = options_.max_queue_requests / (others + 1);
    const int64_t bytes_part = options_.max_in_flight_bytes / (others + 1);
    if (absl::StrContains(status.message(), "queue is full")) {
      EXPECT_GE(before[flow].waiting, part) << "refused below its part";
      ++refused_;
    }
    EXPECT_EQ(after[flow].displaced, before[flow].displaced) << "displaced by its own flow";
    if (displaced > 0) {
      EXPECT_TRUE(before[flow].waiting < part || before[flow].bytes < bytes_part);
    }
    displaced_ += displaced;
  }

  // Spelled out, apart from the keys.
  static void ExpectMayShareLaunch(const NormProblem& a, const NormProblem& b) {
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.direction, b.direction);
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    if (a.op != Op::kBatchNorm) {
      return;
    }
    EXPECT_EQ(a.batch_norm_mode, b.batch_norm_mode);
    const auto planes = [](const BatchNormShape& shape) {
      return shape.layout == BatchNormLayout::kNchw && shape.spatial > 1 ? shape.spatial : 0;
    };
    EXPECT_EQ(planes(a.batch_norm_shape), planes(b.batch_norm_shape));
    if (a.batch_norm_mode == BatchNormMode::kTraining) {
      EXPECT_EQ(a.batch_norm_shape.spatial, b.batch_norm_shape.spatial);
      EXPECT_EQ(a.batch_norm_shape.layout, b.batch_norm_shape.layout);
    }
  }
  static void ExpectMayConcatenate(const Job& a, const Job& b) {
    EXPECT_EQ(a.problem.direction, Direction::kForward);
    EXPECT_EQ(a.problem.eps, b.problem.eps);
    if (a.problem.op == Op::kBatchNorm) {
      EXPECT_EQ(a.problem.batch_norm_mode, BatchNormMode::kInference);
    }
    constexpr auto kWeight = static_cast<size_t>(Role::kWeight);
    EXPECT_EQ(a.inputs[kWeight].runs.at(0), b.inputs[kWeight].runs.at(0));
  }

  void CheckBatch(const BatchExecutor& executor, const Batch& batch) {
    ASSERT_FALSE(batch.jobs.empty());
    std::vector<size_t> sizes(batch.segment_jobs.begin(), batch.segment_jobs.end());
    if (sizes.empty()) {
      sizes = {batch.jobs.size()};
    }
    const Job& first = *batch.jobs.front();
    int64_t rows = 0;
    int64_t bytes = 0;
    size_t next = 0;
    for (const size_t size : sizes) {
      ASSERT_GT(size, 0);
      const Job& leader = *batch.jobs.at(next);
      for (size_t i = next; i < next + size; ++i) {
        const Job& job = *batch.jobs.at(i);
        EXPECT_LT(batch.started, job.deadline);
        rows += job.problem.rows;
        bytes += ProblemBytes(job.problem) - (i == next ? 0 : ParameterBytes(job.problem));
        ExpectMayShareLaunch(first.problem, job.problem);
        if (size > 1) {
          ExpectMayConcatenate(leader, job);
        }
      }
      next += size;
    }
    EXPECT_EQ(next, batch.jobs.size());
    if (batch.jobs.size() > 1) {
      EXPECT_LE(rows, options_.max_batch_rows);
      EXPECT_LE(bytes, std::min(options_.max_batch_bytes, executor.max_batch_bytes()));
    }
    EXPECT_LE(bytes, executor.max_batch_bytes());
  }

  std::mt19937 random_{static_cast<uint32_t>(GetParam())};
  std::vector<std::shared_ptr<std::atomic<bool>>> flags_;
  std::vector<Accepted> accepted_jobs_;
  int refused_ = 0;
  int displaced_ = 0;
};

TEST_P(BatchingSchedulerPropertyTest, EveryJobEndsOnceAndEveryBatchIsLegal) {
  options_.max_queue_requests = 16;
  options_.max_batch_rows = 25;
  options_.max_batch_bytes = 900;
  options_.max_in_flight_bytes = 12'000;
  options_.max_deference = absl::Milliseconds(20);
  AddExecutor({.device_name = "a", .slots = 2, .max_batch_bytes = 700});
  AddExecutor({.device_name = "b", .slots = 1, .max_batch_bytes = 2000});
  const bool lose_devices = GetParam() % 3 == 0;
  int accepted = 0;
  for (int step = 0; step < 1500; ++step) {
    const int action = Uniform(0, 99);
    if (action < 60) {
      auto outcome = std::make_shared<test::JobOutcome>();
      // Flow 3 sends about as much as the others together.
      const auto flow = static_cast<uint64_t>(std::min(3, Uniform(0, 5)));
      auto job = RandomJob().Flow(flow).Build(outcome);
      const int64_t bytes = ProblemBytes(job->problem);
      const std::array<FlowLoad, 4> before = LoadOfFlows();
      const absl::Status status = scheduler().Submit(job);
      EXPECT_EQ(status.ok(), job == nullptr);
      if (status.ok()) {
        accepted_.push_back(outcome);
        accepted_jobs_.push_back({outcome, flow, bytes});
        ++accepted;
      } else {
        EXPECT_EQ(outcome->calls(), 0);
      }
      CheckFairness(flow, status, before, LoadOfFlows());
    } else if (action < 85) {
      auto& executor = *executors_[static_cast<size_t>(Uniform(0, 1))];
      if (executor.running() > 0) {
        const int i = Uniform(0, executor.running() - 1);
        CheckBatch(executor, executor.batch(i));
        executor.Finish(i);
      }
    } else if (action < 90) {
      clock_.Advance(absl::Milliseconds(Uniform(0, 15)));
    } else if (action < 94 && !flags_.empty()) {
      flags_[static_cast<size_t>(Uniform(0, static_cast<int>(flags_.size()) - 1))]->store(true);
    } else if (action < 98) {
      scheduler().ReapQueue();
    } else if (lose_devices && step > 500) {
      executors_[static_cast<size_t>(Uniform(0, 1))]->set_healthy(Uniform(0, 2) != 0);
    }
    // Work-conserving: while anything waits, no device that could take all of it has a free slot.
    const SchedulerLoad load = scheduler().Load();
    if (!lose_devices && load.queued_requests > 0) {
      EXPECT_EQ(executors_[1]->running(), 1) << "step " << step;
    }
    EXPECT_LE(load.in_flight_bytes, options_.max_in_flight_bytes);
    EXPECT_LE(load.queued_requests, options_.max_queue_requests);
    EXPECT_LE(executors_[0]->running(), 2);
    EXPECT_LE(executors_[1]->running(), 1);
  }
  EXPECT_GT(accepted, 300);
  if (!lose_devices) {
    EXPECT_GT(refused_, 0) << "the limit was never reached";
    EXPECT_GT(displaced_, 0) << "nobody ever gave way";
  }
  for (const auto& executor : executors_) {
    while (executor->running() > 0) {
      executor->Finish();
    }
  }
  scheduler().ReapQueue();
  for (const auto& executor : executors_) {
    while (executor->running() > 0) {
      executor->Finish();
    }
  }
  if (!lose_devices) {
    EXPECT_EQ(scheduler().Load().in_flight_requests, 0);
    EXPECT_EQ(scheduler().Load().in_flight_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BatchingSchedulerPropertyTest, testing::Range(0, 24),
                         [](const auto& seed) { return absl::StrCat("Seed", seed.param); });

}  // namespace
}  // namespace norm::server
