// An executor around another one that stops batches where a test wants them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/scheduler/batch_executor.h"

namespace norm::test {

/// A point on the way of a batch. Work that comes while it is closed waits, and goes on in order on
/// the thread that opens it.
///
/// Threads: safe. Destroyed open.
class Gate {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void Open() {
    std::vector<std::function<void()>> waiting;
    {
      const std::lock_guard lock(mutex_);
      closed_ = false;
      waiting.swap(waiting_);
    }
    for (const auto& work : waiting) work();
  }
  void Pass(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        waiting_.push_back(std::move(work));
        return;
      }
    }
    work();
  }
  int waiting() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(waiting_.size());
  }

 private:
  mutable std::mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

/// Ownership: borrows the executor that does the work.
class GatedExecutor final : public server::BatchExecutor {
 public:
  explicit GatedExecutor(server::BatchExecutor& inner) : inner_(inner) {}

  const std::string& device_name() const override { return inner_.device_name(); }
  int slots() const override { return inner_.slots(); }
  bool healthy() const override { return inner_.healthy(); }
  int64_t max_batch_bytes() const override { return inner_.max_batch_bytes(); }
  int64_t WorkspaceBytes(const server::NormProblem& problem) const override {
    return inner_.WorkspaceBytes(problem);
  }
  absl::StatusOr<server::JobMemory> LeaseMemory(const server::NormProblem& problem,
                                                int64_t input_bytes) override {
    return inner_.LeaseMemory(problem, input_bytes);
  }

  void Start(std::unique_ptr<server::Batch> batch, BatchDone done) override {
    // std::function copies: what moves only is shared.
    auto held = std::make_shared<Held>(Held{std::move(batch), std::move(done)});
    before_copy.Pass([this, held] {
      inner_.Start(std::move(held->batch), [this, held](std::unique_ptr<server::Batch> finished) {
        held->batch = std::move(finished);
        after_kernel.Pass([held] { held->done(std::move(held->batch)); });
      });
    });
  }

  Gate before_copy;   // handed to the device, nothing copied yet
  Gate after_kernel;  // results are there, the scheduler does not know

 private:
  struct Held {
    std::unique_ptr<server::Batch> batch;
    BatchDone done;
  };

  server::BatchExecutor& inner_;
};

}  // namespace norm::test
