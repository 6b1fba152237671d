// Exact orders of service, worked out by hand from the rule in job_queue.h: the flow with the least
// tag is next, a tie goes to the earlier job, and a job served adds its cost to its flow's tag.
#include "server/scheduler/job_queue.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using testing::ElementsAre;

constexpr BatchLimits kNoLimits = {std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::max()};

class JobQueueTest : public testing::Test {
 protected:
  /// A job named by its flow and its number there, "1.0" the first of flow 1. It costs `units` (8
  /// bytes each) and travels alone.
  void Push(uint64_t flow, int64_t units = 1, Priority priority = Priority::kInteractive,
            absl::Time order_time = absl::UnixEpoch()) {
    PushJob(flow, units, priority, order_time, std::nullopt);
  }
  /// The same for one that shares launches with the others.
  void PushMergeable(uint64_t flow, int64_t units = 1, Priority priority = Priority::kInteractive,
                     absl::Time hold_until = absl::InfinitePast()) {
    PushJob(flow, units, priority, absl::UnixEpoch(), JobKeys{}, hold_until);
  }

  /// Names of the jobs of the next batch.
  std::string Pop(const BatchLimits& limits = kNoLimits) {
    const JobQueue::Popped popped = queue_.PopBatch(limits);
    if (popped.batch == nullptr) return "";
    reason_ = popped.batch->reason;
    std::string names;
    for (const auto& job : popped.batch->jobs) {
      absl::StrAppend(&names, names.empty() ? "" : " ", names_.at(job.get()));
    }
    return names;
  }
  /// Everything, one batch after the other.
  std::vector<std::string> PopAll(const BatchLimits& limits = kNoLimits) {
    std::vector<std::string> batches;
    while (!queue_.empty()) batches.push_back(Pop(limits));
    return batches;
  }

  JobQueue queue_{
      {.request_cost_bytes = 0, .bulk_share_percent = 20, .full_rows = 4, .full_bytes = 1 << 20}};
  BatchCloseReason reason_ = BatchCloseReason::kSingle;
  int64_t workspace_bytes_ = 0;  // of the jobs that are pushed next

 private:
  void PushJob(uint64_t flow, int64_t units, Priority priority, absl::Time order_time,
               std::optional<JobKeys> keys, absl::Time hold_until = absl::InfinitePast()) {
    auto job =
        test::JobBuilder(test::UnitProblem(units, 0)).Flow(flow).Priority(priority).Build(nullptr);
    job->workspace_bytes = workspace_bytes_;
    names_.insert_or_assign(job.get(), absl::StrCat(flow, ".", numbers_[flow]++));
    queue_.Push(std::move(job), std::move(keys), order_time, hold_until);
  }

  absl::flat_hash_map<const Job*, std::string> names_;
  absl::flat_hash_map<uint64_t, int> numbers_;
};

TEST_F(JobQueueTest, FlowsTakeTurns) {
  for (int i = 0; i < 4; ++i) Push(1);
  Push(2);
  Push(2);
  EXPECT_THAT(PopAll(), ElementsAre("1.0", "2.0", "1.1", "2.1", "1.2", "1.3"));
}

TEST_F(JobQueueTest, TurnsAreMeasuredInCost) {
  Push(1, 3);
  Push(1, 3);
  for (int i = 0; i < 6; ++i) Push(2, 1);
  // Tags (1, 2): 0,0 3,0 3,1 3,2 3,3: a tie, 1.1 came first.
  EXPECT_THAT(PopAll(), ElementsAre("1.0", "2.0", "2.1", "2.2", "1.1", "2.3", "2.4", "2.5"));
}

TEST_F(JobQueueTest, ANewcomerGoesNextAndHasNoClaimOnThePast) {
  for (int i = 0; i < 5; ++i) Push(1);
  EXPECT_EQ(Pop(), "1.0");
  EXPECT_EQ(Pop(), "1.1");
  EXPECT_EQ(Pop(), "1.2");  // flow 1 has tag 3, and 2 was served last
  for (int i = 0; i < 4; ++i) Push(2);
  EXPECT_THAT(PopAll(), ElementsAre("2.0", "1.3", "2.1", "1.4", "2.2", "2.3"));
}

TEST_F(JobQueueTest, AFlowThatComesBackWhileOthersWaitHasNotPaidLess) {
  for (int i = 0; i < 8; ++i) Push(1);
  Push(2, 5);
  EXPECT_EQ(Pop(), "1.0");
  EXPECT_EQ(Pop(), "2.0");
  Push(2, 1);  // due at 5, after what flow 1 gets for 5
  EXPECT_THAT(PopAll(), ElementsAre("1.1", "1.2", "1.3", "1.4", "1.5", "2.1", "1.6", "1.7"));
}

TEST_F(JobQueueTest, NothingIsOwedOnceTheQueueWasEmpty) {
  Push(1);
  Push(2, 100);
  EXPECT_THAT(PopAll(), ElementsAre("1.0", "2.0"));
  Push(2);
  Push(1);
  EXPECT_THAT(PopAll(), ElementsAre("2.1", "1.1"));
}

TEST_F(JobQueueTest, WithinAFlowTheNearestTimeIsFirst) {
  const auto at = [](int seconds) { return absl::FromUnixSeconds(seconds); };
  Push(1, 1, Priority::kInteractive, at(30));
  Push(1, 1, Priority::kInteractive, at(10));
  Push(2, 1, Priority::kInteractive, at(20));
  Push(2, 1, Priority::kInteractive, at(5));
  EXPECT_THAT(PopAll(), ElementsAre("2.1", "1.1", "2.0", "1.0"));
}

TEST_F(JobQueueTest, ARequestCostsSomethingWhateverItsBytes) {
  JobQueue queue({.request_cost_bytes = 100, .full_rows = 1, .full_bytes = 1});
  const auto job = test::JobBuilder(test::UnitProblem(5, 0)).Build(nullptr);
  EXPECT_EQ(queue.Cost(*job), 140);
}

TEST_F(JobQueueTest, ABatchIsFilledInTurnsToo) {
  for (int i = 0; i < 5; ++i) PushMergeable(1);
  PushMergeable(2);
  PushMergeable(2);
  EXPECT_EQ(Pop({.max_rows = 4, .max_bytes = 1 << 20, .max_job_bytes = 1 << 20}),
            "1.0 2.0 1.1 2.1");
  EXPECT_EQ(reason_, BatchCloseReason::kRows);
  EXPECT_EQ(Pop(), "1.2 1.3 1.4");
  EXPECT_EQ(reason_, BatchCloseReason::kSlotFree);
}

TEST_F(JobQueueTest, AWorkspaceTakesRoomOnTheDeviceAlone) {
  workspace_bytes_ = 32;
  for (int i = 0; i < 5; ++i) PushMergeable(1);
  // 8 bytes each and 32 of workspace: no room for one, for two, for all.
  EXPECT_EQ(Pop({.max_rows = 9, .max_bytes = 40, .max_job_bytes = 39}), "");
  EXPECT_EQ(Pop({.max_rows = 9, .max_bytes = 40, .max_job_bytes = 80}), "1.0 1.1");
  EXPECT_EQ(reason_, BatchCloseReason::kBytes);
  EXPECT_EQ(Pop({.max_rows = 9, .max_bytes = 24, .max_job_bytes = 120}), "1.2 1.3 1.4");
  PushMergeable(1);
  EXPECT_TRUE(queue_.TakeLargerThan(40).empty());
  EXPECT_EQ(queue_.TakeLargerThan(39).size(), 1U);
}

TEST_F(JobQueueTest, WhatTravelsAlongIsCharged) {
  PushMergeable(1);
  PushMergeable(1);
  PushMergeable(1);
  Push(1);
  Push(2);
  Push(2);
  Push(2);
  EXPECT_EQ(Pop(), "1.0 1.1 1.2");  // flow 1 has tag 3
  EXPECT_THAT(PopAll(), ElementsAre("2.0", "2.1", "2.2", "1.3"));
}

TEST_F(JobQueueTest, InteractiveJobsGoFirstButForTheShareOfBulk) {
  for (int i = 0; i < 3; ++i) Push(1, 1, Priority::kBulk);
  for (int i = 0; i < 10; ++i) Push(2);
  // A bulk share of 20 %: one unit after each four of the others.
  EXPECT_THAT(PopAll(), ElementsAre("2.0", "2.1", "2.2", "2.3", "1.0", "2.4", "2.5", "2.6", "2.7",
                                    "1.1", "2.8", "2.9", "1.2"));
}

TEST_F(JobQueueTest, ALargeBulkJobWaitsForItsWholeShare) {
  Push(1, 3, Priority::kBulk);
  for (int i = 0; i < 14; ++i) Push(2);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(Pop(), absl::StrCat("2.", i));
  EXPECT_EQ(Pop(), "1.0");
}

TEST_F(JobQueueTest, NoShareIsSavedUpWhileNoBulkJobWaits) {
  for (int i = 0; i < 8; ++i) Push(2);
  for (int i = 0; i < 8; ++i) Pop();
  Push(1, 1, Priority::kBulk);
  Push(2);
  EXPECT_THAT(PopAll(), ElementsAre("2.8", "1.0"));
}

TEST_F(JobQueueTest, BulkJobsTravelAlongBehindInteractiveOnes) {
  PushMergeable(1, 1, Priority::kBulk);
  PushMergeable(1, 1, Priority::kBulk);
  PushMergeable(2);
  PushMergeable(2);
  EXPECT_EQ(Pop({.max_rows = 3, .max_bytes = 1 << 20, .max_job_bytes = 1 << 20}), "2.0 2.1 1.0");
}

TEST_F(JobQueueTest, FlowsOfBulkJobsTakeTurnsAmongThemselves) {
  Push(1, 1, Priority::kBulk);
  Push(1, 1, Priority::kBulk);
  Push(2, 1, Priority::kBulk);
  EXPECT_THAT(PopAll(), ElementsAre("1.0", "2.0", "1.1"));
}

TEST_F(JobQueueTest, AHeldGroupWaitsForItsTime) {
  const absl::Time until = absl::FromUnixSeconds(10);
  PushMergeable(1, 1, Priority::kInteractive, until);
  PushMergeable(2, 1, Priority::kInteractive, until + absl::Seconds(1));
  EXPECT_EQ(queue_.NextRelease(), until);
  queue_.Release(until - absl::Nanoseconds(1));
  EXPECT_EQ(Pop(), "");
  Push(3);
  EXPECT_EQ(Pop(), "3.0");
  queue_.Release(until);
  EXPECT_EQ(Pop(), "1.0 2.0");
  EXPECT_EQ(reason_, BatchCloseReason::kDelay);
  EXPECT_EQ(queue_.NextRelease(), absl::InfiniteFuture());
  PushMergeable(1, 1, Priority::kInteractive, until + absl::Seconds(2));
  EXPECT_EQ(Pop(), "");  // a new group
}

TEST_F(JobQueueTest, AFullGroupIsHeldNoLonger) {
  const absl::Time until = absl::FromUnixSeconds(10);
  for (int i = 0; i < 3; ++i) PushMergeable(1, 1, Priority::kInteractive, until);
  EXPECT_EQ(Pop(), "");
  PushMergeable(2, 1, Priority::kInteractive, until);
  EXPECT_EQ(queue_.NextRelease(), absl::InfiniteFuture());
  EXPECT_EQ(Pop(), "1.0 2.0 1.1 1.2");
  EXPECT_EQ(reason_, BatchCloseReason::kSlotFree);
}

TEST_F(JobQueueTest, AJobThatCannotWaitReleasesItsGroupEarlier) {
  PushMergeable(1, 1, Priority::kInteractive, absl::FromUnixSeconds(10));
  PushMergeable(1, 1, Priority::kInteractive, absl::FromUnixSeconds(4));
  EXPECT_EQ(queue_.NextRelease(), absl::FromUnixSeconds(4));
}

TEST_F(JobQueueTest, TheLastOfAFlowIsBulkAndFurthestInTime) {
  const auto at = [](int seconds) { return absl::FromUnixSeconds(seconds); };
  Push(1, 1, Priority::kInteractive, at(30));
  Push(1, 2, Priority::kInteractive, at(10));
  Push(1, 4, Priority::kBulk, at(5));
  Push(2, 8);
  EXPECT_EQ(queue_.BytesOf(1), 7 * 8);
  EXPECT_EQ(queue_.TakeLast(1)->problem.rows, 4);
  EXPECT_EQ(queue_.TakeLast(1)->problem.rows, 1);
  EXPECT_EQ(queue_.BytesOf(1), 2 * 8);
  EXPECT_EQ(queue_.TakeLast(1)->problem.rows, 2);
  EXPECT_EQ(queue_.TakeLast(1), nullptr);
  EXPECT_EQ(queue_.BytesOf(1), 0);
}

TEST_F(JobQueueTest, CostAheadIsWhatWouldBeServedFirst) {
  for (int i = 0; i < 10; ++i) Push(1);
  Push(2, 3);
  const auto ahead = [&](uint64_t flow, Priority priority) {
    const auto job =
        test::JobBuilder(test::UnitProblem(1, 0)).Flow(flow).Priority(priority).Build(nullptr);
    return queue_.CostAhead(*job, absl::UnixEpoch()) / 8;
  };
  EXPECT_EQ(ahead(3, Priority::kInteractive), 0);       // a newcomer goes next
  EXPECT_EQ(ahead(2, Priority::kInteractive), 3 + 3);   // its own, and as much of flow 1
  EXPECT_EQ(ahead(1, Priority::kInteractive), 10 + 3);  // everything
  EXPECT_EQ(ahead(3, Priority::kBulk), 4);              // four units for its one, at 20 %
}

}  // namespace
}  // namespace norm::server
