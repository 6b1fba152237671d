#include "server/device/memory_waitlist.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <thread>
#include <vector>

namespace norm::server {
namespace {

/// Memory for one.
class OnePlace {
 public:
  absl::Status Take() {
    ++tries_;
    tries_.notify_all();
    return taken_.exchange(true) ? absl::UnavailableError("taken") : absl::OkStatus();
  }
  void GiveBack() { taken_ = false; }
  void AwaitTries(int count) {
    for (int seen = tries_; seen < count; seen = tries_) tries_.wait(seen);
  }
  int tries() const { return tries_; }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> tries_{0};
};

absl::Status Nothing() { return absl::OkStatus(); }
absl::Status Unavailable() { return absl::UnavailableError("none"); }
absl::Status Throw() { throw std::bad_alloc(); }

TEST(MemoryWaitlistTest, WhatNobodyHoldsIsNotWaitedFor) {
  MemoryWaitlist list;
  EXPECT_EQ(list.Lease(Unavailable, true).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(list.Lease(Nothing, true).ok());  // its hold ends here
  EXPECT_EQ(list.Lease(Unavailable, true).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(list.waiting(), 0);
}

TEST(MemoryWaitlistTest, ALeaseThatThrowsHoldsNothing) {
  MemoryWaitlist list;
  EXPECT_THROW((void)list.Lease(Throw, true), std::bad_alloc);
  EXPECT_THROW((void)list.Lease(Throw, false), std::bad_alloc);
  int tries = 0;
  const auto throw_on_second_try = [&] { return ++tries == 2 ? Throw() : Unavailable(); };
  EXPECT_THROW((void)list.Lease(throw_on_second_try, true), std::bad_alloc);
  // None of them is waited for, or waits.
  EXPECT_EQ(list.Lease(Unavailable, true).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(list.waiting(), 0);
}

TEST(MemoryWaitlistTest, OnlyWantOfMemoryNowIsWaitedFor) {
  MemoryWaitlist list;
  const auto held = list.Lease(Nothing, true);
  ASSERT_TRUE(held.ok());
  const auto too_much = [] { return absl::ResourceExhaustedError("more than there is"); };
  EXPECT_EQ(list.Lease(too_much, true).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(list.Lease(Unavailable, false).status().code(), absl::StatusCode::kUnavailable);
}

TEST(MemoryWaitlistTest, GetsWhatAnotherGivesBack) {
  MemoryWaitlist list;
  OnePlace place;
  const auto take = [&] { return place.Take(); };
  auto first = list.Lease(take, false);
  ASSERT_TRUE(first.ok());
  std::thread waiting([&] {
    EXPECT_TRUE(list.Lease(take, true).ok());
    place.GiveBack();
  });
  place.AwaitTries(3);  // the first, the other's, and its next
  place.GiveBack();
  first->Reset();
  waiting.join();
}

TEST(MemoryWaitlistTest, NobodyStandsBehindTheSlowCallOfAnother) {
  MemoryWaitlist list;
  OnePlace place;
  auto first = list.Lease([&] { return place.Take(); }, false);
  ASSERT_TRUE(first.ok());
  std::promise<void> calls;
  std::promise<void> returns;
  std::thread waiting([&] {
    const auto slow_at_last = [&] {
      absl::Status status = place.Take();
      if (status.ok()) {
        calls.set_value();
        returns.get_future().wait();
      }
      return status;
    };
    EXPECT_TRUE(list.Lease(slow_at_last, true).ok());
  });
  place.AwaitTries(3);
  place.GiveBack();
  first->Reset();
  calls.get_future().wait();
  for (const bool may_wait : {true, false}) EXPECT_TRUE(list.Lease(Nothing, may_wait).ok());
  returns.set_value();
  waiting.join();
}

TEST(MemoryWaitlistTest, WhoWaitsIsNotOvertaken) {
  MemoryWaitlist list;
  OnePlace place;
  auto first = list.Lease([&] { return place.Take(); }, false);
  ASSERT_TRUE(first.ok());
  std::atomic<bool> got{false};
  std::thread waiting([&] {
    const auto hold = list.Lease([&] { return place.Take(); }, true);
    got = hold.ok();
    place.GiveBack();
  });
  place.AwaitTries(3);
  std::atomic<bool> ended{false};
  std::thread later([&] {
    const auto hold = list.Lease(
        [&] {
          EXPECT_GT(place.tries(), 3);
          return place.Take();
        },
        true);
    EXPECT_TRUE(hold.ok());
    EXPECT_TRUE(got);
    ended = true;
  });
  while (list.waiting() < 2 && !ended) std::this_thread::yield();
  place.GiveBack();
  first->Reset();
  waiting.join();
  later.join();
}

TEST(MemoryWaitlistTest, ManyTakeTurns) {
  MemoryWaitlist list;
  OnePlace place;
  std::atomic<int> inside{0};
  std::vector<std::thread> threads(4);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int i = 0; i < 500; ++i) {
        auto hold = list.Lease([&] { return place.Take(); }, true);
        ASSERT_TRUE(hold.ok()) << hold.status();
        EXPECT_EQ(++inside, 1);
        --inside;
        place.GiveBack();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(list.waiting(), 0);
}

}  // namespace
}  // namespace norm::server
