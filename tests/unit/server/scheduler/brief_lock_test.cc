#include "server/scheduler/brief_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace norm::server {
namespace {

TEST(BriefLockTest, OneThreadHoldsItAtATime) {
  std::mutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50'000; ++k) {
        const BriefLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 200'000);
}

TEST(BriefLockTest, WaitsForOneThatHoldsItLonger) {
  std::mutex mutex;
  bool released = false;
  bool seen = false;
  std::atomic<bool> begun{false};
  mutex.lock();
  std::thread thread([&] {
    begun = true;
    const BriefLock lock(mutex);
    seen = released;
  });
  while (!begun) std::this_thread::yield();
  released = true;
  mutex.unlock();
  thread.join();
  EXPECT_TRUE(seen);
  EXPECT_TRUE(mutex.try_lock());  // it was given back
  mutex.unlock();
}

}  // namespace
}  // namespace norm::server
