#include "client/cpp/src/answer_threads.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "grpc/support/time.h"
#include "grpcpp/alarm.h"

namespace norm::client {
namespace {

TEST(AnswerThreadsTest, ManyCallsShareOneQueueAndAllAreAnswered) {
  AnswerThreads threads;
  std::vector<std::unique_ptr<AnswerThreads::Call>> calls;
  for (int i = 0; i < AnswerThreads::kPollingCalls + 8; ++i)
    calls.push_back(std::make_unique<AnswerThreads::Call>(threads));
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool polls = i < static_cast<size_t>(AnswerThreads::kPollingCalls);
    EXPECT_EQ(calls[i]->queue() == calls.back()->queue(), !polls) << i;
  }
  std::vector<grpc::Alarm> alarms(calls.size());
  for (size_t i = 0; i < calls.size(); ++i)
    alarms[i].Set(calls[i]->queue(), gpr_time_0(GPR_CLOCK_MONOTONIC), calls[i]->tag());
  for (const auto& call : calls) call->Wait();
}

TEST(AnswerThreadsTest, ACallThatEndsMakesRoomForAnotherThatPolls) {
  AnswerThreads threads;
  std::vector<std::unique_ptr<AnswerThreads::Call>> calls;
  for (int i = 0; i < AnswerThreads::kPollingCalls; ++i)
    calls.push_back(std::make_unique<AnswerThreads::Call>(threads));
  AnswerThreads::Call one(threads);
  AnswerThreads::Call two(threads);
  calls.pop_back();
  AnswerThreads::Call polls(threads);
  EXPECT_EQ(one.queue(), two.queue());
  EXPECT_NE(polls.queue(), one.queue());
}

TEST(AnswerThreadsTest, OfTheProcessThereIsOneWhileItIsUsed) {
  std::shared_ptr<AnswerThreads> one = AnswerThreads::OfProcess();
  EXPECT_EQ(one, AnswerThreads::OfProcess());
  const std::weak_ptr<AnswerThreads> watched = one;
  one.reset();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace norm::client
