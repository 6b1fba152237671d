// Runs batches on the CPU kernels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "norm/kernels/thread_pool.h"
#include "server/device/batch_layout.h"
#include "server/device/buffer_pool.h"
#include "server/device/gather_plan.h"
#include "server/device/job_memory.h"
#include "server/device/kernel_args.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

struct CpuBatchExecutorOptions {
  std::string device_name = "cpu";
  int device_index = 0;  // in the Metrics' device names
  // Batches at once, each on a thread of its own.
  int slots = 2;
  // Threads of one large kernel or copy, the slot's own included. Large batches take turns.
  int kernel_threads = 1;
  // Of all staging memory. A batch may take half of it; the rest covers slab rounding, workspaces
  // and results that are still being sent.
  int64_t memory_budget_bytes = int64_t{2} << 30;
  // Batches that move fewer bytes run on one thread: the slot's or, beside no other, that of Run's
  // caller.
  int64_t parallel_bytes = int64_t{256} << 10;
};

/// Threads:    safe. One thread per slot, or the one that calls Run, gathers the inputs, runs the
///             kernel and calls `done`.
/// Ownership:  borrows the metrics. Destruction finishes what was started, then joins. Results may
///             outlive the executor.
/// Memory:     inputs and workspace return to the pool before `done`; outputs when the last copy of
///             their owner goes.
class CpuBatchExecutor final : public BatchExecutor {
 public:
  CpuBatchExecutor(CpuBatchExecutorOptions options, Metrics& metrics);
  ~CpuBatchExecutor() override;
  CpuBatchExecutor(const CpuBatchExecutor&) = delete;
  CpuBatchExecutor& operator=(const CpuBatchExecutor&) = delete;

  const std::string& device_name() const override { return options_.device_name; }
  int slots() const override { return options_.slots; }
  bool healthy() const override { return true; }
  int64_t max_batch_bytes() const override { return options_.memory_budget_bytes / 2; }
  int64_t WorkspaceBytes(const NormProblem& problem) const override;
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem, int64_t input_bytes) override;
  void Start(std::unique_ptr<Batch> batch, BatchDone done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(std::unique_ptr<Batch> batch, BatchDone done) override ABSL_LOCKS_EXCLUDED(mutex_);

  PoolUsage memory_usage() const { return pool_.usage(); }
  /// Bytes that were copied from requests; results are not copied.
  int64_t host_copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Work {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };

  void RunSlot() ABSL_LOCKS_EXCLUDED(mutex_);
  /// What one batch at a time uses, again for every batch.
  struct Scratch {
    ThreadPool own_thread{1};
    BatchLayout layout;
    GatherPlan plan;
    KernelCall call;
  };
  void RunWork(Work work, std::unique_ptr<Scratch> scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Leaves a result for every job.
  void RunBatch(Batch& batch, Scratch& scratch);
  absl::Status Compute(Batch& batch, Scratch& scratch);

  const CpuBatchExecutorOptions options_;
  Metrics& metrics_;
  BufferPool pool_;
  JobMemoryShare job_memory_{pool_};
  ThreadPool kernel_threads_;
  std::atomic<int64_t> copied_bytes_{0};
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Scratch>> idle_ ABSL_GUARDED_BY(mutex_);  // one per slot, or in use
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> slots_;
};

}  // namespace norm::server
