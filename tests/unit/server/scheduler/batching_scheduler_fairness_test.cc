// Who is served, who must give way and who is refused when several callers compete.
#include <gmock/gmock.h>

#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/scheduler/scheduler_fixture.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

constexpr uint64_t kFlood = 1;
constexpr uint64_t kOther = 2;

class BatchingSchedulerFairnessTest : public SchedulerFixture {
 protected:
  /// Of `units` * 8 bytes, in a launch of its own.
  test::JobBuilder Of(uint64_t flow, int64_t units = 1) {
    return test::JobBuilder(test::UnitProblem(units, kind_++)).Flow(flow);
  }
  static uint64_t RunningFlow(const test::FakeBatchExecutor& executor) {
    return executor.batch(0).jobs.at(0)->flow;
  }

 private:
  int kind_ = 0;
};

TEST_F(BatchingSchedulerFairnessTest, AnotherCallersRequestIsNextHoweverManyWait) {
  auto& executor = AddExecutor();
  for (int i = 0; i < 100; ++i) Submit(Of(kFlood));
  const auto other = Submit(Of(kOther));
  executor.Finish();
  // Both are owed nothing, and the flood's came first.
  EXPECT_EQ(RunningFlow(executor), kFlood);
  executor.Finish();
  EXPECT_EQ(RunningFlow(executor), kOther);
  executor.Finish();
  EXPECT_TRUE(other->result().status.ok());
}

TEST_F(BatchingSchedulerFairnessTest, ALoneFlowMayFillTheQueue) {
  options_.max_queue_requests = 4;
  AddExecutor();
  for (int i = 0; i < 5; ++i) Submit(Of(kFlood));
  EXPECT_THAT(std::string(Refused(Of(kFlood)).message()), HasSubstr("queue is full: 4"));
}

TEST_F(BatchingSchedulerFairnessTest, AFullQueueGivesEachFlowItsEqualPart) {
  options_.max_queue_requests = 4;
  auto& executor = AddExecutor();
  std::vector<Outcome> flood;
  for (int i = 0; i < 5; ++i) flood.push_back(Submit(Of(kFlood)));  // one runs, four wait
  std::vector<Outcome> other;
  other.push_back(Submit(Of(kOther)));  // the part of each is two
  ASSERT_TRUE(flood[4]->done());
  EXPECT_EQ(flood[4]->result().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(flood[4]->result().status), absl::ZeroDuration());
  EXPECT_FALSE(flood[3]->done());
  other.push_back(Submit(Of(kOther)));
  EXPECT_TRUE(flood[3]->done());
  // Both have their part now: neither may push the other out.
  EXPECT_EQ(Refused(Of(kOther)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Refused(Of(kFlood)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scheduler().Load().queued_requests, 4);
  EXPECT_EQ(scheduler().Load().in_flight_requests, 5);
  while (executor.running() > 0) executor.Finish();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(flood[static_cast<size_t>(i)]->result().status.ok());
  for (const Outcome& outcome : other) EXPECT_TRUE(outcome->result().status.ok());
}

TEST_F(BatchingSchedulerFairnessTest, AFlowOverItsPartIsRefusedWhileOthersAreUnderTheirs) {
  options_.max_queue_requests = 6;
  AddExecutor();
  for (int i = 0; i < 7; ++i) Submit(Of(kFlood));
  Submit(Of(kOther));
  Submit(Of(3));
  // Three flows, a part of two each: the flood still has four waiting and gets no more.
  EXPECT_EQ(Refused(Of(kFlood)).code(), absl::StatusCode::kUnavailable);
  Submit(Of(kOther));
  Submit(Of(3));
  EXPECT_EQ(scheduler().Load().queued_requests, 6);
}

TEST_F(BatchingSchedulerFairnessTest, TheMostExcessiveFlowGivesWay) {
  options_.max_queue_requests = 9;
  AddExecutor();
  Submit(Of(kFlood));
  std::vector<Outcome> four;
  std::vector<Outcome> five;
  for (int i = 0; i < 4; ++i) four.push_back(Submit(Of(3)));
  for (int i = 0; i < 5; ++i) five.push_back(Submit(Of(4)));
  Submit(Of(kOther));
  EXPECT_TRUE(five.back()->done());
  EXPECT_FALSE(four.back()->done());
}

TEST_F(BatchingSchedulerFairnessTest, AFullByteBudgetGivesEachFlowItsEqualPart) {
  options_.max_in_flight_bytes = 800;
  auto& executor = AddExecutor();
  std::vector<Outcome> flood;
  for (int i = 0; i < 8; ++i) flood.push_back(Submit(Of(kFlood, 12)));  // 96 bytes each
  EXPECT_EQ(scheduler().Load().in_flight_bytes, 768);
  const auto other = Submit(Of(kOther, 25));  // 200 bytes, 168 missing: two of the flood's
  EXPECT_TRUE(flood[7]->done());
  EXPECT_TRUE(flood[6]->done());
  EXPECT_FALSE(flood[5]->done());
  EXPECT_EQ(scheduler().Load().in_flight_bytes, 768 - 192 + 200);
  EXPECT_EQ(Refused(Of(kFlood, 12)).code(), absl::StatusCode::kUnavailable);
  // 200 + 208 bytes are over the other's part of 400.
  EXPECT_EQ(Refused(Of(kOther, 26)).code(), absl::StatusCode::kUnavailable);
  Submit(Of(kOther, 25));
  while (executor.running() > 0) executor.Finish();
  EXPECT_TRUE(other->result().status.ok());
}

TEST_F(BatchingSchedulerFairnessTest, WhatRunsIsNeverTakenBack) {
  options_.max_in_flight_bytes = 800;
  auto& executor = AddExecutor({.slots = 2});
  const auto first = Submit(Of(kFlood, 40));
  const auto second = Submit(Of(kFlood, 40));
  const auto waiting = Submit(Of(kFlood, 10));
  const absl::Status status = Refused(Of(kOther, 50));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(RetryAfter(status), absl::ZeroDuration());
  EXPECT_FALSE(waiting->done()) << "was ended although that made no room";
  executor.Finish();
  Submit(Of(kOther, 50));
  EXPECT_FALSE(first->result().status.code() == absl::StatusCode::kUnavailable);
  EXPECT_FALSE(second->done());
}

TEST_F(BatchingSchedulerFairnessTest, AFlowWithNothingMayAskForMoreThanItsPart) {
  options_.max_in_flight_bytes = 800;
  AddExecutor();
  std::vector<Outcome> flood;
  for (int i = 0; i < 8; ++i) flood.push_back(Submit(Of(kFlood, 12)));
  Submit(Of(kOther, 45));  // 360 bytes in one: 328 missing, the flood's part is 400
  int ended = 0;
  for (const Outcome& outcome : flood) ended += outcome->done();
  EXPECT_EQ(ended, 4);
}

TEST_F(BatchingSchedulerFairnessTest, LargeLaunchesLeaveASlotToSmallOnes) {
  options_.express_bytes = 80;
  auto& executor = AddExecutor({.slots = 3});
  for (int i = 0; i < 4; ++i) Submit(Of(kFlood, 11));  // 88 bytes
  EXPECT_EQ(executor.running(), 2);
  Submit(Of(kOther, 10));
  EXPECT_EQ(executor.running(), 3);
  executor.Finish(2);  // the small one's slot is not for the large ones that wait
  EXPECT_EQ(executor.running(), 2);
  EXPECT_EQ(scheduler().Load().queued_requests, 2);
  Submit(Of(kOther, 10));
  Submit(Of(kOther, 10));  // waits, with the large ones before it
  executor.Finish(2);
  ASSERT_EQ(executor.running(), 3);
  EXPECT_EQ(executor.batch(2).jobs.at(0)->flow, kOther);
  executor.Finish(0);  // a large one ends: the next follows
  ASSERT_EQ(executor.running(), 3);
  EXPECT_EQ(executor.batch(2).jobs.at(0)->flow, kFlood);
}

TEST_F(BatchingSchedulerFairnessTest, AnExpressLaunchStaysSmall) {
  options_.express_bytes = 80;
  auto& executor = AddExecutor({.slots = 2});
  Submit(Of(kFlood, 100));
  SubmitRows(1);  // 48 bytes, in the express slot
  for (int i = 0; i < 4; ++i) SubmitRows(1);
  executor.Finish(1);
  EXPECT_EQ(executor.batch(1).jobs.size(), 2);  // 48 and 32 more with the same weight
  executor.Finish(0);
  EXPECT_EQ(executor.batch(1).jobs.size(), 2);
}

TEST_F(BatchingSchedulerFairnessTest, ASingleSlotIsForAll) {
  options_.express_bytes = 80;
  auto& executor = AddExecutor();
  Submit(Of(kFlood, 100));
  EXPECT_EQ(executor.running(), 1);
}

TEST_F(BatchingSchedulerFairnessTest, BulkRequestsAreNeverStarved) {
  options_.request_cost_bytes = 0;
  options_.bulk_share_percent = 25;
  auto& executor = AddExecutor();
  Submit(Of(kFlood));
  std::vector<Outcome> bulk;
  for (int i = 0; i < 5; ++i) bulk.push_back(Submit(Of(kOther).Priority(Priority::kBulk)));
  std::string order;
  for (int i = 0; i < 20; ++i) {
    Submit(Of(kFlood));
    executor.Finish();
    order += RunningFlow(executor) == kOther ? 'b' : 'i';
  }
  EXPECT_EQ(order, "iiibiiibiiibiiibiiib");
}

TEST_F(BatchingSchedulerFairnessTest, AQueueOfOneHasNoPartToClaim) {
  options_.max_queue_requests = 1;
  auto& executor = AddExecutor();
  Submit(Of(kFlood));
  const auto waiting = Submit(Of(kFlood));
  EXPECT_EQ(Refused(Of(kOther)).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(waiting->done());
  executor.Finish();
  Submit(Of(kOther));
}

}  // namespace
}  // namespace norm::server
