#include "server/device/job_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;

/// One byte stands for each slab: nobody writes to it.
absl::StatusOr<std::shared_ptr<std::byte>> OneByte(int64_t) {
  return std::make_shared<std::byte>();
}

TEST(JobMemoryShareTest, WhatBatchesHoldDoesNotCount) {
  BufferPool pool(OneByte, 64 * kMib, nullptr);
  JobMemoryShare share(pool);
  const auto batches = pool.Lease(32 * kMib);
  auto one = share.Lease({.inputs = 4 * kMib, .outputs = 4 * kMib});
  auto other = share.Lease({.inputs = 4 * kMib, .outputs = 2 * kMib, .workspace = 2 * kMib});
  ASSERT_TRUE(batches.ok() && one.ok() && other.ok());
  EXPECT_EQ(share.brought_bytes(), 16 * kMib);
  {
    const auto fits = share.Lease({.inputs = 8 * kMib, .outputs = 8 * kMib});
    EXPECT_TRUE(fits.ok()) << fits.status();
    EXPECT_EQ(pool.usage().used_bytes, 64 * kMib);
    EXPECT_EQ(share.brought_bytes(), 32 * kMib);
  }
  const auto over = share.Lease({.inputs = 8 * kMib, .outputs = 10 * kMib});
  EXPECT_EQ(over.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(over.status().message(), HasSubstr("16777216 bytes in use"));
  EXPECT_THAT(over.status().message(), HasSubstr("takes 18874368"));
  EXPECT_THAT(over.status().message(), HasSubstr("may have 33554432"));
  EXPECT_GT(RetryAfter(over.status()), absl::ZeroDuration());
  // Part by part, as they are given back.
  one->inputs.reset();
  EXPECT_EQ(share.brought_bytes(), 12 * kMib);
  EXPECT_TRUE(share.Lease({.inputs = 8 * kMib, .outputs = 10 * kMib}).ok());
  one = JobMemory();
  other = JobMemory();
  EXPECT_EQ(share.brought_bytes(), 0);
  EXPECT_EQ(pool.usage().used_bytes, 32 * kMib);
}

TEST(JobMemoryShareTest, ALargerSlabThatLayFreeCountsAsWhatItIs) {
  BufferPool pool(OneByte, 64 * kMib, nullptr);
  JobMemoryShare share(pool);
  EXPECT_TRUE(pool.Lease(16 * kMib).ok());
  auto memory = share.Lease({.inputs = 10 * kMib, .outputs = 4 * kMib});
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(share.brought_bytes(), 20 * kMib);
  EXPECT_EQ(pool.usage().used_bytes, 20 * kMib);
  memory = JobMemory();
  EXPECT_EQ(share.brought_bytes(), 0);
}

TEST(JobMemoryShareTest, AloneARequestMayHaveMore) {
  BufferPool pool(OneByte, 64 * kMib, nullptr);
  JobMemoryShare share(pool);
  auto large = share.Lease({.inputs = 40 * kMib, .outputs = 8 * kMib});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(share.Lease({.inputs = 1, .outputs = 1}).status().code(),
            absl::StatusCode::kUnavailable);
  large = JobMemory();
  EXPECT_TRUE(share.Lease({.inputs = 1, .outputs = 1}).ok());
}

TEST(JobMemoryShareTest, ALeaseThatFailsCountsNothing) {
  bool throws = false;
  int left = 1;
  BufferPool pool(
      [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
        if (throws) throw std::bad_alloc();
        if (--left < 0) return absl::ResourceExhaustedError("no more");
        return OneByte(bytes);
      },
      64 * kMib, nullptr);
  JobMemoryShare share(pool);
  const JobMemoryBytes bytes = {.inputs = 4 * kMib, .outputs = 8 * kMib};
  EXPECT_EQ(share.Lease(bytes).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(share.brought_bytes(), 0);
  throws = true;
  EXPECT_THROW((void)share.Lease(bytes), std::bad_alloc);
  EXPECT_EQ(share.brought_bytes(), 0);
  EXPECT_EQ(share.Lease({.inputs = 65 * kMib}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(share.brought_bytes(), 0);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(JobMemoryShareTest, AtOnceTheyGetNoMoreThanTheirHalf) {
  BufferPool pool(OneByte, 64 * kMib, nullptr);
  JobMemoryShare share(pool);
  constexpr int kThreads = 8;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> leased{0};
    std::barrier all(kThreads);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        all.arrive_and_wait();
        const auto memory = share.Lease({.inputs = 4 * kMib, .outputs = 4 * kMib});
        leased += memory.ok() ? 1 : 0;
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(leased, 4);
    EXPECT_EQ(share.brought_bytes(), 0);
  }
}

TEST(JobMemoryShareTest, LeasesMayOutliveThePool) {
  std::weak_ptr<std::byte> slab;
  JobMemory memory;
  {
    BufferPool pool(
        [&](int64_t) -> absl::StatusOr<std::shared_ptr<std::byte>> {
          auto made = std::make_shared<std::byte>();
          slab = made;
          return made;
        },
        64 * kMib, nullptr);
    JobMemoryShare share(pool);
    memory = *share.Lease({.inputs = kMib, .outputs = kMib});
  }
  EXPECT_FALSE(slab.expired());
  memory = JobMemory();
  EXPECT_TRUE(slab.expired());
}

}  // namespace
}  // namespace norm::server
