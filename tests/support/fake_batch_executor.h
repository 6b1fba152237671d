// An executor whose batches end when, and how, a test says so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/scheduler/batch_executor.h"

namespace norm::test {

struct FakeBatchExecutorOptions {
  std::string device_name = "fake";
  int slots = 1;
  int64_t max_batch_bytes = int64_t{1} << 40;
  int64_t workspace_bytes = 0;  // of any problem
};

/// Holds each batch from Start until one of the Finish calls, which run `done` on the calling
/// thread.
///
/// Threads: safe.
class FakeBatchExecutor final : public server::BatchExecutor {
 public:
  explicit FakeBatchExecutor(FakeBatchExecutorOptions options = {})
      : options_(std::move(options)) {}

  const std::string& device_name() const override { return options_.device_name; }
  int slots() const override { return options_.slots; }
  bool healthy() const override {
    if (looks_.load() > 0 && looks_.fetch_sub(1) == 1) healthy_.store(false);
    return healthy_.load();
  }
  int64_t max_batch_bytes() const override { return options_.max_batch_bytes; }

  int64_t WorkspaceBytes(const server::NormProblem&) const override {
    return options_.workspace_bytes;
  }

  absl::StatusOr<server::JobMemory> LeaseMemory(const server::NormProblem& problem,
                                                int64_t input_bytes) override {
    const auto allocate = [](int64_t bytes) {
      return std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(bytes)],
                                        std::default_delete<std::byte[]>());
    };
    return server::JobMemory{allocate(input_bytes), allocate(server::ProblemBytes(problem))};
  }

  void Start(std::unique_ptr<server::Batch> batch, BatchDone done) override {
    std::lock_guard lock(mutex_);
    ++started_;
    running_.push_back({std::move(batch), std::move(done)});
    has_running_.notify_one();
  }

  void set_healthy(bool healthy) { healthy_.store(healthy); }
  /// Lost at the n-th look from now on, whoever looks.
  void LoseAtLook(int n) { looks_.store(n); }

  /// Batches started since construction.
  int started() const {
    std::lock_guard lock(mutex_);
    return started_;
  }
  int running() const {
    std::lock_guard lock(mutex_);
    return static_cast<int>(running_.size());
  }
  /// The i-th of the running batches, oldest first; valid until it is finished.
  const server::Batch& batch(int i) const {
    std::lock_guard lock(mutex_);
    return *running_.at(static_cast<size_t>(i)).batch;
  }

  /// Ends the i-th running batch with one status for all its jobs.
  void Finish(int i = 0, const absl::Status& status = absl::OkStatus()) {
    Running running = Take(i);
    running.batch->results.resize(running.batch->jobs.size());
    for (server::JobResult& result : running.batch->results) {
      result.status = status;
    }
    running.done(std::move(running.batch));
  }
  /// Ends the oldest batch with these results as they are.
  void FinishWith(std::vector<server::JobResult> results) { FinishAs(0, std::move(results)); }
  /// Ends the i-th running batch with these results as they are.
  void FinishAs(int i, std::vector<server::JobResult> results) {
    Running running = Take(i);
    running.batch->results = std::move(results);
    running.done(std::move(running.batch));
  }
  /// Waits for a batch, then finishes the oldest.
  void AwaitAndFinish() {
    {
      std::unique_lock lock(mutex_);
      has_running_.wait(lock, [this] { return !running_.empty(); });
    }
    Finish();
  }

 private:
  struct Running {
    std::unique_ptr<server::Batch> batch;
    BatchDone done;
  };

  Running Take(int i) {
    std::lock_guard lock(mutex_);
    Running running = std::move(running_.at(static_cast<size_t>(i)));
    running_.erase(running_.begin() + i);
    return running;
  }

  const FakeBatchExecutorOptions options_;
  mutable std::atomic<bool> healthy_{true};
  mutable std::atomic<int> looks_{0};
  mutable std::mutex mutex_;
  std::condition_variable has_running_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Running> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::test
