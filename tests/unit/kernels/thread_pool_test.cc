#include "norm/kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace norm {
namespace {

TEST(ThreadPoolTest, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      pool.Run(count, [&](int64_t i) { calls[static_cast<size_t>(i)].fetch_add(1); });
      for (const std::atomic<int>& call : calls) {
        EXPECT_EQ(call.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, WritesOfTasksAreVisibleAfterRun) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> values(50);
    pool.Run(50, [&](int64_t i) { values[static_cast<size_t>(i)] = i + round; });
    for (int64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(values[static_cast<size_t>(i)], i + round);
    }
  }
}

TEST(ThreadPoolTest, ServesCallersFromSeveralThreads) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        std::atomic<int64_t> sum = 0;
        pool.Run(20, [&](int64_t i) { sum.fetch_add(i); });
        total.fetch_add(sum.load());
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(total.load(), 4 * 50 * 190);
}

TEST(ThreadPoolTest, ConstructionAndDestructionWithoutWorkDoNotHang) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(4);
  }
}

TEST(ThreadPoolTest, UsesOnlyTheCallerWhenItHasOneThread) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  pool.Run(10, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

}  // namespace
}  // namespace norm
