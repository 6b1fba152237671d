// Which jobs start when, in what order, and together with which others.
#include "server/scheduler/batching_scheduler.h"

#include <gmock/gmock.h>

#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using Role = TensorRole;

class BatchingSchedulerTest : public SchedulerFixture {};

TEST_F(BatchingSchedulerTest, StartsAtOnceWhileASlotIsFree) {
  auto& executor = AddExecutor({.slots = 2});
  SubmitRows(3);
  ASSERT_EQ(executor.running(), 1);
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kSlotFree);
  SubmitRows(4);
  EXPECT_EQ(executor.running(), 2);
  EXPECT_EQ(scheduler().Load().queued_requests, 0);
}

TEST_F(BatchingSchedulerTest, MergesWhatPiledUpWhileEverySlotWasBusy) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(2);
  SubmitRows(3);
  SubmitRows(5);
  EXPECT_EQ(executor.started(), 1);
  EXPECT_EQ(scheduler().Load().queued_requests, 3);
  executor.Finish();
  ASSERT_EQ(executor.running(), 1);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(2, 3, 5));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kSlotFree);
}

TEST_F(BatchingSchedulerTest, NeverStartsMoreThanTheSlots) {
  auto& executor = AddExecutor({.slots = 3});
  for (int i = 0; i < 10; ++i) {
    NormProblem problem = test::RmsNormProblem(1, 4 + i);  // no two merge
    Submit(test::JobBuilder(problem));
    EXPECT_LE(executor.running(), 3);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(executor.running(), std::min(3, 10 - i));
    executor.Finish();
  }
}

TEST_F(BatchingSchedulerTest, StopsAtTheRowLimit) {
  options_.max_batch_rows = 10;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(4);
  SubmitRows(6);
  SubmitRows(1);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(4, 6));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kRows);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(1));
}

TEST_F(BatchingSchedulerTest, StopsAtTheByteLimitAndCountsParametersOnce) {
  // Hidden size 4, f32: a row takes 32 bytes of x and y, the weight 16.
  options_.max_batch_bytes = 16 + 32 * 5;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(2);
  SubmitRows(3);
  SubmitRows(1);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(2, 3));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kBytes);
}

TEST_F(BatchingSchedulerTest, AJobOverTheMergeLimitsTravelsAlone) {
  options_.max_batch_rows = 4;
  options_.max_batch_bytes = 100;
  auto& executor = AddExecutor();
  SubmitRows(1);
  SubmitRows(50);
  SubmitRows(1);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(50));
}

TEST_F(BatchingSchedulerTest, NearestDeadlineGoesFirst) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto problem = [](int64_t hidden) { return test::RmsNormProblem(1, hidden); };
  const auto at = [&](int ms) { return clock_.Now() + absl::Milliseconds(ms); };
  Submit(test::JobBuilder(problem(10)).Deadline(at(300)));
  Submit(test::JobBuilder(problem(11)).Deadline(at(100)));
  Submit(test::JobBuilder(problem(12)).Deadline(at(200)));
  for (const int64_t expected : {11, 12, 10}) {
    executor.Finish();
    EXPECT_EQ(executor.batch(0).jobs[0]->problem.hidden_size, expected);
  }
}

TEST_F(BatchingSchedulerTest, EqualDeadlinesGoInOrderOfArrival) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const absl::Time deadline = clock_.Now() + absl::Milliseconds(100);
  for (const int64_t hidden : {21, 20, 23, 22}) {
    Submit(test::JobBuilder(test::RmsNormProblem(1, hidden)).Deadline(deadline));
  }
  for (const int64_t expected : {21, 20, 23, 22}) {
    executor.Finish();
    EXPECT_EQ(executor.batch(0).jobs[0]->problem.hidden_size, expected);
  }
}

TEST_F(BatchingSchedulerTest, FillsABatchInDeadlineOrder) {
  options_.max_batch_rows = 5;
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto submit = [&](int64_t rows, int ms) {
    Submit(test::JobBuilder(test::RmsNormProblem(rows, 4))
               .Deadline(clock_.Now() + absl::Milliseconds(ms)));
  };
  submit(2, 300);
  submit(3, 200);
  submit(1, 100);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(1, 3));
}

TEST_F(BatchingSchedulerTest, AJobWithoutDeadlineIsNotPassedOverForEver) {
  options_.max_deference = absl::Milliseconds(50);
  auto& executor = AddExecutor();
  SubmitRows(1);
  Submit(test::JobBuilder(test::RmsNormProblem(1, 100)));
  clock_.Advance(absl::Milliseconds(40));
  // Due 60 ms after the patient job arrived: later than its deference.
  Submit(test::JobBuilder(test::RmsNormProblem(1, 101))
             .Deadline(clock_.Now() + absl::Milliseconds(20)));
  executor.Finish();
  EXPECT_EQ(executor.batch(0).jobs[0]->problem.hidden_size, 100);
}

TEST_F(BatchingSchedulerTest, EqualParametersAreOneSegmentAndOthersSegmentsOfTheirOwn) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const auto submit = [&](int64_t rows, std::vector<float> weight) {
    Submit(test::JobBuilder(test::RmsNormProblem(rows, 2)).Input(Role::kWeight, weight));
  };
  submit(1, {1, 2});
  submit(2, {1, 3});
  submit(3, {1, 2});
  submit(4, {1, 4});
  submit(5, {1, 3});
  executor.Finish();
  ASSERT_EQ(executor.running(), 1);
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(1, 3, 2, 5, 4));
  EXPECT_THAT(executor.batch(0).segment_jobs, ElementsAre(2, 2, 1));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kSlotFree);
}

TEST_F(BatchingSchedulerTest, BackwardAndBatchNormTrainingShareLaunchesEachASegment) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  NormProblem backward = test::RmsNormProblem(2, 4);
  backward.direction = Direction::kBackward;
  backward.inputs = test::Roles({Role::kX, Role::kDy});
  backward.outputs = test::Roles({Role::kDx});
  NormProblem training = test::BatchNormInferenceProblem({2, 4, 1});
  training.batch_norm_mode = BatchNormMode::kTraining;
  for (const NormProblem& problem : {backward, training, backward, training, training}) {
    Submit(test::JobBuilder(problem));
  }
  executor.Finish();
  EXPECT_THAT(executor.batch(0).segment_jobs, ElementsAre(1, 1));
  EXPECT_EQ(executor.batch(0).jobs[1]->problem.direction, Direction::kBackward);
  executor.Finish();
  EXPECT_THAT(executor.batch(0).segment_jobs, ElementsAre(1, 1, 1));
}

TEST_F(BatchingSchedulerTest, SixtyFourWeightsLeaveInAsManyLaunchesAsTheSegmentLimitTakes) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  for (int copy = 0; copy < 2; ++copy) {
    for (int i = 0; i < kMaxBatchSegments + 36; ++i) {
      Submit(test::JobBuilder(test::RmsNormProblem(1, 2))
                 .Input(Role::kWeight, std::vector<float>{1, static_cast<float>(i)}));
    }
  }
  executor.Finish();
  EXPECT_EQ(executor.batch(0).segment_jobs.size(), kMaxBatchSegments);
  EXPECT_EQ(executor.batch(0).jobs.size(), kMaxBatchSegments);
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kSegments);
  executor.Finish();
  // The last 36 weights of the first round, and the first 28 of the second.
  EXPECT_EQ(executor.batch(0).jobs.size(), kMaxBatchSegments);
  while (executor.running() > 0) {
    executor.Finish();
  }
  EXPECT_EQ(executor.started(),
            1 + (2 * (kMaxBatchSegments + 36) + kMaxBatchSegments - 1) / kMaxBatchSegments);
}

TEST_F(BatchingSchedulerTest, ALargeJobTravelsAlone) {
  auto& executor = AddExecutor();
  SubmitRows(1);
  const int64_t rows = kMinLoneJobBytes / 32;  // of four values, in and out
  SubmitRows(rows);
  SubmitRows(rows - 1);
  SubmitRows(1);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(rows));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kSingle);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(rows - 1));
  EXPECT_EQ(executor.batch(0).reason, BatchCloseReason::kRows);
}

TEST_F(BatchingSchedulerTest, EmptyTensorsAreScheduledLikeOthers) {
  auto& executor = AddExecutor();
  SubmitRows(0);
  EXPECT_EQ(executor.running(), 1);
  SubmitRows(0);
  SubmitRows(2);
  executor.Finish();
  EXPECT_THAT(RowsOf(executor.batch(0)), ElementsAre(0, 2));
}

TEST_F(BatchingSchedulerTest, PicksTheLeastLoadedDevice) {
  auto& first = AddExecutor({.device_name = "a", .slots = 2});
  auto& second = AddExecutor({.device_name = "b", .slots = 2});
  SubmitRows(100);
  EXPECT_EQ(first.running(), 1);
  SubmitRows(1);
  SubmitRows(1);
  EXPECT_EQ(second.running(), 2);
  SubmitRows(1);
  EXPECT_EQ(first.running(), 2);
}

TEST_F(BatchingSchedulerTest, PassesOverDevicesTooSmallForTheJob) {
  auto& small = AddExecutor({.device_name = "small", .max_batch_bytes = 100});
  auto& large = AddExecutor({.device_name = "large", .max_batch_bytes = 10'000});
  SubmitRows(50);  // 1616 bytes
  EXPECT_EQ(large.running(), 1);
  SubmitRows(60);  // waits for the large one, though the small one is idle
  EXPECT_EQ(small.running(), 0);
  SubmitRows(1);
  EXPECT_EQ(small.running(), 1);
  small.Finish();
  EXPECT_EQ(small.running(), 0);
  large.Finish();
  EXPECT_THAT(RowsOf(large.batch(0)), ElementsAre(60));
}

TEST_F(BatchingSchedulerTest, ReportsWhereTheTimeWentAndWithWhom) {
  auto& executor = AddExecutor({.device_name = "cuda:3"});
  SubmitRows(1);
  const auto waited = SubmitRows(2);
  clock_.Advance(absl::Milliseconds(3));
  SubmitRows(5);
  executor.Finish();
  executor.Finish();
  const JobTiming& timing = waited->result().timing;
  EXPECT_EQ(timing.queue, absl::Milliseconds(3));
  EXPECT_EQ(timing.device, "cuda:3");
  EXPECT_EQ(timing.batch_requests, 2);
  EXPECT_EQ(timing.batch_rows, 7);
}

}  // namespace
}  // namespace norm::server
