// Runs batches on one GPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/device/buffer_pool.h"
#include "server/device/cuda_flight.h"
#include "server/device/host_copier.h"
#include "server/device/job_memory.h"
#include "server/device/memory_waitlist.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

struct CudaBatchExecutorOptions {
  std::string device_name = "cuda:0";
  int device_index = 0;  // in the Metrics' device names
  int ordinal = 0;       // of the CUDA runtime
  // Batches at once. With three, one copies in while another computes and a third copies out.
  int slots = 3;
  // A batch may take half of the smaller one; the rest covers slab rounding, workspaces and, in
  // pinned memory, results that are still being sent.
  int64_t pinned_budget_bytes = int64_t{2} << 30;
  int64_t device_budget_bytes = int64_t{8} << 30;
  // Requests of up to so many bytes of inputs, and of outputs, find their memory made before Create
  // returns, as far as half of each budget goes. Making 64 MiB of pinned memory stops the work of
  // all others for 40 ms and more.
  int64_t prewarm_bytes = int64_t{64} << 20;
  // Threads that share the gathering of large batches with the slots' own.
  int copy_helpers = 4;
  // Batches of at most these inputs and outputs are launched by the thread that starts them while
  // the device is idle. Waking another was seen to take 20 us and more, gathering them takes up to
  // 30.
  int64_t inline_bytes = int64_t{512} << 10;
  // The same for Run, whose caller also waits for their end: three changes of threads fewer. A lone
  // call of 1 MiB each way took 952 and 984 us instead of 1071 and 1100; of 32 KiB the runs of one
  // build differ by more than it may gain (H200 machine, over loopback).
  int64_t run_bytes = int64_t{4} << 20;
  // How long that caller waits; then the completion thread does. 1 MiB takes 60 us from its launch.
  std::chrono::microseconds patience{200};
  // How long the thread that watches for the end of batches goes on looking for new ones before it
  // sleeps: a wake-up was seen to take 20 us and more.
  std::chrono::microseconds completion_spin{100};
  CudaWays ways;
  // Other sources than PinnedMemory() and DeviceMemory(ordinal), whose memory they must hand out.
  MemorySource pinned_memory;
  MemorySource device_memory;
};

/// Stages:    a slot's thread, or for a small batch on an idle device whose memory lies free the one
///            that calls Start or Run, leases memory, gathers the inputs into pinned memory, with
///            helpers where they are large, and enqueues the copy in (chunk by chunk, while it
///            gathers), the kernels and the copy out. Small batches stay in pinned memory and are not
///            copied; large mergeable ones go through an idle device in slices (CudaWays). One thread
///            per GPU polls for the end of the batches in flight and calls `done`; Run's caller does
///            that first for its own, unless it failed.
/// Memory:    device memory and pinned inputs return to their pools before `done`; pinned outputs
///            when the last copy of their owner goes. A batch waits, on a slot's thread, for device
///            memory that others in flight hold. No device-wide synchronization, no allocation while
///            sizes repeat, and none ever on the thread that calls Start or Run.
/// Errors:    out of memory is RESOURCE_EXHAUSTED, a refused call INTERNAL, both for that batch
///            alone. An error that poisons the context makes the device unhealthy for good: the
///            batch that met it ends INTERNAL, every other one UNAVAILABLE.
/// Ownership: borrows the metrics. Destruction finishes what was started, then joins. Results may
///            outlive the executor.
/// Threads:   safe.
class CudaBatchExecutor final : public BatchExecutor {
 public:
  /// Makes memory of the pools and runs every op once, so that the first requests take as long as
  /// later ones.
  static absl::StatusOr<std::unique_ptr<CudaBatchExecutor>> Create(
      const CudaBatchExecutorOptions& options, Metrics& metrics);
  ~CudaBatchExecutor() override;
  CudaBatchExecutor(const CudaBatchExecutor&) = delete;
  CudaBatchExecutor& operator=(const CudaBatchExecutor&) = delete;

  const std::string& device_name() const override { return options_.device_name; }
  int slots() const override { return options_.slots; }
  bool healthy() const override { return !lost_.load(std::memory_order_acquire); }
  int64_t max_batch_bytes() const override {
    return std::min(options_.pinned_budget_bytes, options_.device_budget_bytes) / 2;
  }
  int64_t WorkspaceBytes(const NormProblem& problem) const override;
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem, int64_t input_bytes) override {
    return job_memory_.Lease({input_bytes, OutputSlabBytes(problem)});
  }
  void Start(std::unique_ptr<Batch> batch, BatchDone done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(std::unique_ptr<Batch> batch, BatchDone done) override ABSL_LOCKS_EXCLUDED(mutex_);

  PoolUsage pinned_usage() const { return pinned_.usage(); }
  PoolUsage device_usage() const { return device_.usage(); }
  /// Batches that wait for what others hold of it.
  int64_t waiting_for_device_memory() { return device_waitlist_.waiting(); }
  /// Bytes that this host's threads copied from requests; results are not copied.
  int64_t host_copied_bytes() const { return copier_.copied_bytes() - warm_up_copied_bytes_; }

 private:
  struct Work {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };
  struct Slot {
    Slot(CudaSlot slot, const CudaFlightResources& resources)
        : flight(std::move(slot), resources) {}
    // Whose turn it is: in idle_, nobody's; then the launching thread's; in in_flight_, the
    // completion thread's.
    CudaFlight flight;
    Work work;
    std::chrono::steady_clock::time_point start;
    absl::Status status;             // of `work`, as far as it is known
    std::condition_variable wakeup;  // assigned, or the executor stops
    bool assigned = false;           // guarded by mutex_: its thread is to run `work`
    bool alone = false;              // no other slot was busy when it got `work`
    MemoryWaitlist::Hold device_memory;
  };

  CudaBatchExecutor(const CudaBatchExecutorOptions& options, Metrics& metrics);

  void RunSlot(Slot& slot) ABSL_LOCKS_EXCLUDED(mutex_);
  void Assign(Slot& slot, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives the work to a slot, which the caller is to launch if it is returned: it is idle with all
  /// others, and the batch has no more than `most_bytes`. If not, its thread does, or the work waits.
  Slot* Place(std::unique_ptr<Batch> batch, BatchDone done, int64_t most_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// Everything up to the last enqueued copy; leaves in `status` how that went. But false, and
  /// nothing enqueued, where `mode` kFreeSlabOnly gets no memory.
  bool Launch(Slot& slot, const Status& device, LeaseMode mode);
  /// Launch on a thread that is not the slot's; where memory does not lie free the slot's own, which
  /// may allocate and wait, launches it, and this is false.
  bool LaunchHere(Slot& slot, const Status& device) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LeaseMemory(Slot& slot, LeaseMode mode);
  /// Polls for the end of the slot's work for options_.patience; true when it ended well and was
  /// handed back. What fails is left to the completion thread, which may have to wait for the device.
  bool AwaitEnd(Slot& slot);
  /// From now on the completion thread looks for the end of the slot's work.
  void Watch(Slot& slot) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunCompletions() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether the batch in the slot is over, well or not.
  bool IsOver(Slot& slot);
  /// True when the batch in the slot was over, and is handed back.
  bool PollSlot(Slot& slot);
  /// Of a batch that is over; false, and why in `status`, when it has none.
  bool TakeResults(Slot& slot);
  /// Waits for what was enqueued, and ends the jobs with `status`.
  void Fail(Slot& slot);
  void HandBack(Slot& slot) ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What a batch that met this error ends with. Marks the device lost when the error is sticky.
  absl::Status Judge(const Status& status);
  absl::Status LostError() const;

  const CudaBatchExecutorOptions options_;
  Metrics& metrics_;
  BufferPool pinned_;
  BufferPool device_;
  MemoryWaitlist device_waitlist_;
  JobMemoryShare job_memory_{pinned_};
  HostCopier copier_;
  int64_t warm_up_copied_bytes_ = 0;  // set by Create
  std::atomic<bool> lost_{false};

  std::mutex mutex_;
  std::condition_variable flight_changed_;  // in_flight_, or completions_stopping_
  std::vector<Slot*> idle_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);  // empty while a slot is idle
  std::vector<Slot*> in_flight_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool completions_stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<size_t> flights_{0};  // size of in_flight_, for a look without the lock
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::thread> slot_threads_;
  std::thread completion_thread_;
};

}  // namespace norm::server
