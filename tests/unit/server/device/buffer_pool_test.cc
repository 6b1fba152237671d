#include "server/device/buffer_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace norm::server {
namespace {

constexpr int64_t kKib = 1024;
constexpr int64_t kMib = 1024 * kKib;

/// Host memory that counts what is outstanding and refuses beyond a limit.
struct CountedMemory {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> limit{int64_t{1} << 50};

  MemorySource Source() {
    return [this](int64_t size) -> absl::StatusOr<std::shared_ptr<std::byte>> {
      if (bytes.load() + size > limit.load()) {
        return absl::ResourceExhaustedError("source refuses");
      }
      bytes.fetch_add(size);
      allocations.fetch_add(1);
      // One byte stands for the slab: nobody writes to it.
      return std::shared_ptr<std::byte>(new std::byte, [this, size](std::byte* memory) {
        bytes.fetch_sub(size);
        delete memory;
      });
    };
  }
};

TEST(SlabBytesTest, WastesAtMostAQuarter) {
  EXPECT_EQ(SlabBytes(0), 4 * kKib);
  EXPECT_EQ(SlabBytes(4096), 4096);
  EXPECT_EQ(SlabBytes(4097), 5120);
  EXPECT_EQ(SlabBytes(7 * kKib + 1), 8 * kKib);
  EXPECT_EQ(SlabBytes(kMib), kMib);
  for (int64_t bytes = 4096; bytes < int64_t{1} << 40; bytes += bytes / 7 + 1) {
    EXPECT_GE(SlabBytes(bytes), bytes);
    EXPECT_LE(SlabBytes(bytes), bytes + bytes / 4 + 4);
    EXPECT_EQ(SlabBytes(SlabBytes(bytes)), SlabBytes(bytes));
  }
}

TEST(BufferPoolTest, ReusesWhatCameBack) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), kMib, nullptr);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(pool.Lease(10'000).ok());
  }
  EXPECT_EQ(memory.allocations.load(), 1);
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(pool.usage().free_bytes, SlabBytes(10'000));
}

TEST(BufferPoolTest, UsesALargerFreeSlabUpToTwiceTheSize) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), kMib, nullptr);
  EXPECT_TRUE(pool.Lease(16 * kKib).ok());
  {
    const auto smaller = pool.Lease(8 * kKib);
    EXPECT_EQ(pool.usage().used_bytes, 16 * kKib);
  }
  EXPECT_EQ(memory.allocations.load(), 1);
  EXPECT_TRUE(pool.Lease(7 * kKib).ok());
  EXPECT_EQ(memory.allocations.load(), 2);
}

TEST(BufferPoolTest, CopiesOfALeaseShareIt) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), kMib, nullptr);
  std::shared_ptr<std::byte> lease = *pool.Lease(100);
  std::shared_ptr<const void> copy = lease;
  lease.reset();
  EXPECT_EQ(pool.usage().used_bytes, 4 * kKib);
  copy.reset();
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BufferPoolTest, FreesOtherSizesBeforeItRefuses) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 64 * kKib, nullptr);
  {
    std::vector<std::shared_ptr<std::byte>> small;
    for (int i = 0; i < 16; ++i) {
      small.push_back(*pool.Lease(4 * kKib));
    }
    EXPECT_EQ(pool.Lease(1).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(pool.usage().free_bytes, 64 * kKib);
  const auto large = pool.Lease(48 * kKib);
  ASSERT_TRUE(large.ok());
  EXPECT_LE(memory.bytes.load(), 64 * kKib);
  EXPECT_EQ(pool.usage().used_bytes, 48 * kKib);
}

TEST(BufferPoolTest, FreesNothingForWhatFindsNoRoomBesideLeases) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 64 * kKib, nullptr);
  const auto held = pool.Lease(32 * kKib);
  ASSERT_TRUE(pool.Lease(16 * kKib).ok());
  EXPECT_EQ(pool.Lease(48 * kKib).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pool.usage().free_bytes, 16 * kKib);
  ASSERT_TRUE(pool.Lease(16 * kKib).ok());
  EXPECT_EQ(memory.allocations.load(), 2);
}

TEST(BufferPoolTest, MoreThanTheBudgetIsResourceExhausted) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 64 * kKib, nullptr);
  EXPECT_EQ(pool.Lease(65 * kKib).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.Lease(int64_t{1} << 62).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory.allocations.load(), 0);
  EXPECT_TRUE(pool.Lease(64 * kKib).ok());
}

TEST(BufferPoolTest, ARefusingSourceGetsBackWhatLiesFreeAndIsAskedAgain) {
  CountedMemory memory;
  memory.limit = 20 * kKib;
  BufferPool pool(memory.Source(), kMib, nullptr);
  EXPECT_TRUE(pool.Lease(16 * kKib).ok());
  const auto second = pool.Lease(20 * kKib);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(memory.bytes.load(), 20 * kKib);
  EXPECT_EQ(pool.Lease(4 * kKib).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.usage().used_bytes, 20 * kKib);
  EXPECT_EQ(pool.usage().free_bytes, 0);
}

TEST(BufferPoolTest, ASourceThatThrowsLeavesThePoolAsItWas) {
  CountedMemory memory;
  bool throws = true;
  BufferPool pool(
      [&, source = memory.Source()](int64_t bytes) {
        if (throws) throw std::bad_alloc();
        return source(bytes);
      },
      64 * kKib, nullptr);
  EXPECT_THROW((void)pool.Lease(48 * kKib), std::bad_alloc);
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(pool.usage().free_bytes, 0);
  throws = false;
  EXPECT_TRUE(pool.Lease(64 * kKib).ok());
}

TEST(BufferPoolTest, WithoutAllocatingOnlyAFreeSlabIsLeased) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 64 * kKib, nullptr);
  EXPECT_TRUE(pool.Lease(16 * kKib).ok());
  const auto without = [&](int64_t bytes) {
    return pool.Lease(bytes, LeaseMode::kFreeSlabOnly).status().code();
  };
  EXPECT_EQ(without(9 * kKib), absl::StatusCode::kOk);
  EXPECT_EQ(without(8 * kKib - 1), absl::StatusCode::kOk);
  EXPECT_EQ(without(4 * kKib), absl::StatusCode::kUnavailable);
  EXPECT_EQ(without(64 * kKib), absl::StatusCode::kUnavailable);
  EXPECT_EQ(without(65 * kKib), absl::StatusCode::kResourceExhausted);
  // Nor was anything freed for them.
  EXPECT_EQ(memory.bytes.load(), 16 * kKib);
  EXPECT_EQ(memory.allocations.load(), 1);
}

TEST(BufferPoolTest, SaysHowLargeTheSlabIs) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), kMib, nullptr);
  int64_t slab_bytes = 0;
  EXPECT_TRUE(pool.Lease(9 * kKib, LeaseMode::kAllocates, &slab_bytes).ok());
  EXPECT_EQ(slab_bytes, 10 * kKib);
  EXPECT_TRUE(pool.Lease(5 * kKib, LeaseMode::kAllocates, &slab_bytes).ok());
  EXPECT_EQ(slab_bytes, 10 * kKib);
}

TEST(BufferPoolTest, FiveThousandShapesStayWithinTheBudget) {
  CountedMemory memory;
  constexpr int64_t kBudget = 64 * kMib;
  BufferPool pool(memory.Source(), kBudget, nullptr);
  std::mt19937 random(56);
  std::vector<int64_t> shapes(5000);
  for (int64_t i = 0; i < 5000; ++i) {
    shapes[i] = (i + 1) * std::uniform_int_distribution<int64_t>(1, 8192)(random) % kBudget;
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (const int64_t bytes : shapes) {
      if (SlabBytes(bytes) <= kBudget) {
        EXPECT_TRUE(pool.Lease(bytes).ok());
      }
      EXPECT_LE(memory.bytes.load(), kBudget);
    }
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BufferPoolTest, PrewarmedSizesNeedNoAllocation) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), kMib, nullptr);
  pool.Prewarm(64 * kKib, 2);
  const int64_t allocations = memory.allocations.load();
  EXPECT_EQ(allocations, 2 * 5);  // 5, 10, 20, 40, 80 KiB
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(pool.usage().allocations, allocations);
  for (int64_t bytes = 1; bytes <= 80 * kKib; bytes += 777) {
    const auto first = pool.Lease(bytes);
    const auto second = pool.Lease(bytes);
    EXPECT_TRUE(first.ok() && second.ok());
  }
  EXPECT_EQ(memory.allocations.load(), allocations);
  EXPECT_TRUE(pool.Lease(80 * kKib + 1).ok());
  EXPECT_EQ(pool.usage().allocations, allocations + 1);
}

// What the default options promise for three slots: requests of 64 MiB, their parameters beside the
// input, while the results of as many others are still being sent.
TEST(BufferPoolTest, LargeRequestsFindTheirSlabsMade) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 2048 * kMib, nullptr);
  pool.Prewarm(64 * kMib, 6);
  const int64_t allocations = memory.allocations.load();
  EXPECT_EQ(memory.bytes.load(), 6 * 5 * kKib * ((1 << 15) - 1));  // 5 KiB, 10 KiB to 80 MiB
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<std::byte>> leases;
    for (int i = 0; i < 3; ++i) {
      leases.push_back(*pool.Lease(64 * kMib + 16 * kKib));
      leases.push_back(*pool.Lease(64 * kMib));
    }
  }
  EXPECT_EQ(memory.allocations.load(), allocations);
}

TEST(BufferPoolTest, PrewarmingStopsAtHalfOfTheBudget) {
  CountedMemory memory;
  BufferPool pool(memory.Source(), 50 * kKib, nullptr);
  pool.Prewarm(kMib, 2);
  EXPECT_EQ(memory.bytes.load(), 20 * kKib);  // twice 5 KiB, once 10
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BufferPoolTest, PrewarmingStopsWhereTheSourceDoes) {
  CountedMemory memory;
  memory.limit = 12 * kKib;
  BufferPool pool(memory.Source(), kMib, nullptr);
  pool.Prewarm(kMib, 2);
  EXPECT_EQ(memory.bytes.load(), 10 * kKib);
  EXPECT_TRUE(pool.Lease(4 * kKib).ok());
}

TEST(BufferPoolTest, TellsItsListenerEveryChange) {
  CountedMemory memory;
  PoolUsage last;
  BufferPool pool(memory.Source(), kMib, [&](PoolUsage usage) { last = usage; });
  auto lease = *pool.Lease(4 * kKib);
  EXPECT_EQ(last.used_bytes, 4 * kKib);
  EXPECT_EQ(last.free_bytes, 0);
  lease.reset();
  EXPECT_EQ(last.used_bytes, 0);
  EXPECT_EQ(last.free_bytes, 4 * kKib);
}

TEST(BufferPoolTest, LeasesMayOutliveThePool) {
  CountedMemory memory;
  std::shared_ptr<std::byte> lease;
  {
    BufferPool pool(memory.Source(), kMib, nullptr);
    lease = *pool.Lease(4 * kKib);
    EXPECT_TRUE(pool.Lease(8 * kKib).ok());
  }
  EXPECT_GT(memory.bytes.load(), 0);
  lease.reset();
  EXPECT_EQ(memory.bytes.load(), 0);
}

TEST(BufferPoolTest, ThreadsLeaseAndReleaseEachOthersSlabs) {
  CountedMemory memory;
  constexpr int64_t kBudget = kMib;
  BufferPool pool(memory.Source(), kBudget, [&](PoolUsage usage) {
    EXPECT_GE(usage.used_bytes, 0);
    EXPECT_LE(usage.used_bytes, kBudget);
  });
  // Each thread leases, hands the lease to its neighbour's mailbox, and drops what it finds in its
  // own.
  constexpr int kThreads = 4;
  std::vector<std::atomic<std::shared_ptr<std::byte>*>> mailboxes(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 2000; ++i) {
        auto lease = pool.Lease(std::uniform_int_distribution<int64_t>(1, 100 * kKib)(random));
        if (lease.ok()) {
          delete mailboxes[(t + 1) % kThreads].exchange(
              new std::shared_ptr<std::byte>(*std::move(lease)));
        }
        delete mailboxes[t].exchange(nullptr);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (auto& mailbox : mailboxes) {
    delete mailbox.exchange(nullptr);
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(memory.bytes.load(), pool.usage().free_bytes);
  EXPECT_LE(memory.bytes.load(), kBudget);
}

TEST(HostMemoryTest, IsAlignedAndWritable) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, 3 * kMib + 5}) {
    const auto memory = HostMemory()(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % kSlabAlignment, 0);
    std::memset(memory->get(), 7, static_cast<size_t>(bytes));
  }
}

TEST(HostMemoryTest, AnAbsurdSizeIsRefused) {
  EXPECT_EQ(HostMemory()(int64_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace norm::server
