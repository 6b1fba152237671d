// The scheduler under real threads; its worth shows under ThreadSanitizer.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <latch>
#include <mutex>
#include <thread>

#include "server/scheduler/batching_scheduler.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

/// Finishes batches on threads of its own, in no particular order.
class ThreadedExecutor final : public BatchExecutor {
 public:
  explicit ThreadedExecutor(int slots) : slots_(slots) {
    for (int i = 0; i < slots; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }
  ~ThreadedExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  const std::string& device_name() const override { return name_; }
  int slots() const override { return slots_; }
  bool healthy() const override { return healthy_.load(); }
  int64_t max_batch_bytes() const override { return int64_t{1} << 30; }
  int64_t WorkspaceBytes(const NormProblem&) const override { return 0; }
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem&, int64_t) override {
    return absl::UnimplementedError("not needed here");
  }
  void Start(std::unique_ptr<Batch> batch, BatchDone done) override {
    std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(batch), std::move(done));
    EXPECT_LE(++running_, slots_);
    ready_.notify_one();
  }
  void set_healthy(bool healthy) { healthy_.store(healthy); }

 private:
  void Work() {
    while (true) {
      std::pair<std::unique_ptr<Batch>, BatchDone> item;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) {
          return;
        }
        item = std::move(queue_.front());
        queue_.pop_front();
        --running_;
      }
      item.first->results.resize(item.first->jobs.size());
      if (!healthy()) {
        for (JobResult& result : item.first->results) {
          result.status = absl::UnavailableError("lost");
        }
      }
      item.second(std::move(item.first));
    }
  }

  const std::string name_ = "threads";
  const int slots_;
  std::atomic<bool> healthy_{true};
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::pair<std::unique_ptr<Batch>, BatchDone>> queue_ ABSL_GUARDED_BY(mutex_);
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

struct Tally {
  std::atomic<int> ended{0};
  std::atomic<int> ok{0};
  std::atomic<int> expired{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> unavailable{0};

  void Count(const absl::Status& status) {
    ended.fetch_add(1);
    switch (status.code()) {
      case absl::StatusCode::kOk:
        ok.fetch_add(1);
        break;
      case absl::StatusCode::kDeadlineExceeded:
        expired.fetch_add(1);
        break;
      case absl::StatusCode::kCancelled:
        cancelled.fetch_add(1);
        break;
      case absl::StatusCode::kUnavailable:
        unavailable.fetch_add(1);
        break;
      default:
        ADD_FAILURE() << status;
    }
  }
};

class BatchingSchedulerRaceTest : public testing::Test {
 protected:
  static constexpr int kThreads = 4;
  static constexpr int kJobsPerThread = 400;

  /// Every thread submits its jobs, some with short deadlines, some cancelled by the submitter
  /// right after.
  void SubmitFromThreads(BatchingScheduler& scheduler) {
    std::latch start(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kJobsPerThread; ++i) {
          SubmitOne(scheduler, t * kJobsPerThread + i);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void SubmitOne(BatchingScheduler& scheduler, int n) {
    const std::vector<float> weight(8, static_cast<float>(n % 3));
    const auto flag = std::make_shared<std::atomic<bool>>(false);
    test::JobBuilder builder(test::RmsNormProblem(n % 5, 8));
    builder.Input(TensorRole::kWeight, weight).Cancelled(flag).RunBytes(24);
    if (n % 4 == 0) {
      builder.Deadline(Clock::Real().Now() + absl::Microseconds(n % 200));
    }
    auto job = builder.Build(nullptr);
    auto ended = std::make_shared<std::atomic<int>>(0);
    job->done = [this, ended, keep = std::move(job->done)](JobResult result) {
      EXPECT_EQ(ended->fetch_add(1), 0);
      tally_.Count(result.status);
    };
    const absl::Status status = scheduler.Submit(job);
    if (status.ok()) {
      accepted_.fetch_add(1);
      if (n % 7 == 0) {
        flag->store(true);
        scheduler.ReapQueue();
      }
    } else {
      refused_.fetch_add(1);
      EXPECT_NE(job, nullptr);
    }
  }

  Metrics metrics_{{"threads"}, BatchCloseReasonNames()};
  Tally tally_;
  std::atomic<int> accepted_{0};
  std::atomic<int> refused_{0};
};

TEST_F(BatchingSchedulerRaceTest, EveryAcceptedJobEndsOnce) {
  ThreadedExecutor a(2);
  ThreadedExecutor b(1);
  BatchingSchedulerOptions options;
  options.max_batch_rows = 64;
  BatchingScheduler scheduler({&a, &b}, options, Clock::Real(), metrics_);
  SubmitFromThreads(scheduler);
  ASSERT_TRUE(scheduler.Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(tally_.ended.load(), accepted_.load());
  EXPECT_EQ(accepted_.load() + refused_.load(), kThreads * kJobsPerThread);
  EXPECT_GT(tally_.ok.load(), 0);
  EXPECT_EQ(tally_.unavailable.load(), 0);
  EXPECT_EQ(scheduler.Load().in_flight_bytes, 0);
}

TEST_F(BatchingSchedulerRaceTest, DevicesComeAndGo) {
  ThreadedExecutor a(2);
  ThreadedExecutor b(2);
  BatchingScheduler scheduler({&a, &b}, {}, Clock::Real(), metrics_);
  std::atomic<bool> stop{false};
  std::thread chaos([&] {
    for (int i = 0; !stop.load(); ++i) {
      a.set_healthy(i % 2 == 0);
      b.set_healthy(i % 3 != 0);
      scheduler.ReapQueue();
      std::this_thread::yield();
    }
  });
  SubmitFromThreads(scheduler);
  stop.store(true);
  chaos.join();
  a.set_healthy(true);
  b.set_healthy(true);
  scheduler.ReapQueue();
  ASSERT_TRUE(scheduler.Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(tally_.ended.load(), accepted_.load());
}

TEST_F(BatchingSchedulerRaceTest, DestructionWhileJobsRunAndWait) {
  ThreadedExecutor executor(1);
  for (int round = 0; round < 20; ++round) {
    BatchingScheduler scheduler({&executor}, {}, Clock::Real(), metrics_);
    for (int i = 0; i < 30; ++i) {
      SubmitOne(scheduler, i);
    }
  }
  EXPECT_EQ(tally_.ended.load(), accepted_.load());
}

}  // namespace
}  // namespace norm::server
