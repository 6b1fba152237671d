// The one scheduling policy: work-conserving, fair between flows, nearest deadline first within one,
// bounded queue.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"
#include "server/scheduler/clock.h"
#include "server/scheduler/flow_accounts.h"
#include "server/scheduler/job_queue.h"
#include "server/scheduler/parameter_interner.h"
#include "server/scheduler/return_times.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/service_estimate.h"

namespace norm::server {

/// Who notices deadlines and departed callers while jobs wait.
enum class Reaping : uint8_t {
  kTimerThread,  // a thread of the scheduler, at the nearest deadline and when asked by ReapQueue
  kByCaller,     // whoever calls ReapQueue, on the calling thread (tests with a fake clock)
};

struct BatchingSchedulerOptions {
  // Jobs waiting for a slot.
  int64_t max_queue_requests = 4096;
  // ProblemBytes of all accepted jobs.
  int64_t max_in_flight_bytes = int64_t{4} << 30;
  // Of merged jobs; one job alone may have more rows, and as many bytes as its executor takes.
  int64_t max_batch_rows = 65536;
  int64_t max_batch_bytes = int64_t{64} << 20;
  // A job is ordered within its flow as if its deadline were no later than this after its arrival,
  // so that one without a deadline is not passed over for ever.
  absl::Duration max_deference = absl::Seconds(1);
  // Launches of up to so many bytes are express: of each device's slots, others leave express_slots
  // free (of a single slot none), so that a small request does not wait until a large launch ends.
  int64_t express_bytes = int64_t{1} << 20;
  int express_slots = 1;
  // How long a mergeable job waits for others although a slot is free; zero starts it at once.
  absl::Duration max_queue_delay = absl::ZeroDuration();
  // Of the work done while requests of both priorities wait, what bulk ones get; in [1, 99].
  int bulk_share_percent = 10;
  // What a request costs its flow beside its bytes. On an H200 a launch with its synchronization
  // takes what 0.5 MB take on PCIe, and a merged one shares it with about eight others.
  int64_t request_cost_bytes = int64_t{64} << 10;
  Reaping reaping = Reaping::kTimerThread;
};

/// Hands jobs to executors.
///
/// Policy:     while a healthy executor that can take the job has a free slot, a job starts at
///             once, on the thread that submits it, on the executor with the least outstanding
///             bytes, which may see it through on that thread (BatchExecutor::Run). Otherwise it waits; a slot that frees takes the job whose turn it is (see
///             JobQueue) and what may be merged with it. So batches grow only while every slot is
///             busy, or for max_queue_delay where that is set.
/// Admission:  a flow may fill the queue and the byte budget while it is alone. When one is full,
///             a job within its flow's equal part takes the place of waiting jobs of flows over
///             theirs, last to be served first, which end with UNAVAILABLE; other jobs are refused.
///             A job that would have to wait beyond its deadline, as recent batches tell, is
///             refused at once.
/// Completion: each accepted job's `done` is called exactly once, never with a lock held: by the
///             thread of the executor, or of Submit's caller, that finished it, by the timer thread or ReapQueue's caller, or by
///             the thread that noticed that it cannot start, or whose job takes its place.
/// Ownership:  borrows executors (at least one), clock and metrics, which must outlive it.
///             Destruction refuses what still waits (UNAVAILABLE) and returns when the executors
///             have handed back what is in flight.
/// Threads:    safe.
class BatchingScheduler final : public Scheduler {
 public:
  BatchingScheduler(std::vector<BatchExecutor*> executors, const BatchingSchedulerOptions& options,
                    const Clock& clock, Metrics& metrics);
  ~BatchingScheduler() override;
  BatchingScheduler(const BatchingScheduler&) = delete;
  BatchingScheduler& operator=(const BatchingScheduler&) = delete;

  absl::Status Submit(std::unique_ptr<Job>& job) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t flow, int64_t bytes,
                                                       const NormProblem& largest_job) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem, int64_t input_bytes) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void ReapQueue() override ABSL_LOCKS_EXCLUDED(mutex_);
  SchedulerLoad Load() const override ABSL_LOCKS_EXCLUDED(mutex_);

  /// From now on Submit refuses; what was accepted goes on.
  void StartDraining() ABSL_LOCKS_EXCLUDED(mutex_);
  /// StartDraining, then waits until every accepted job is done. DEADLINE_EXCEEDED with the number
  /// left when `deadline` (real time) comes first.
  absl::Status Drain(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Device {
    int free_slots = 0;
    int other_slots = 0;  // that launches may take which are not express, and have not taken
    int64_t outstanding_bytes = 0;
  };
  struct Launch {
    size_t device = 0;
    int64_t bytes = 0;
    bool express = false;
    std::unique_ptr<Batch> batch;
  };
  struct Ending {
    std::unique_ptr<Job> job;
    absl::Status status;
  };
  /// What was decided under the lock and is done after it: calls into executors and jobs.
  struct Effects {
    std::vector<Launch> launches;
    std::vector<Ending> endings;
  };

  class BudgetShare;  // what Reserve hands out

  /// The most that any device needs for it; not asked for launches of up to express_bytes, whose
  /// workspace is small too.
  int64_t WorkspaceBytes(const NormProblem& problem) const;
  /// Whether the job may be accepted at all, whatever waits.
  absl::Status CheckJob(const Job& job, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Refuses a job that cannot be done by its deadline behind what waits.
  absl::Status CheckWait(const Job& job, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Finds room in the byte budget and, for a job that waits, in the queue; ends waiting jobs of
  /// others for it where the job's flow is entitled to that.
  absl::Status MakeRoom(const Job& job, int64_t bytes, bool waits, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends waiting jobs of flows over their share of the byte budget until `missing` bytes are free;
  /// false, and none ended, when they do not have that much.
  bool DisplaceBytes(uint64_t flow, int64_t missing, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The equal part of the queue that each flow may claim; one place at least.
  int64_t QueuePart(uint64_t flow) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends the last job of the flow that is furthest over its part of the queue; false when no flow
  /// is over it.
  bool DisplaceWaiting(uint64_t flow, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Displace(std::unique_ptr<Job> job, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReturnReserved(uint64_t flow, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Refuse(RejectReason reason, const std::string& message, absl::Duration retry_after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// When a caller whose request of this cost the queue has no room for is to come back.
  absl::Duration QueueRetryAfter(int64_t cost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time OrderTime(const Job& job, absl::Time submitted) const {
    return std::min(job.deadline, submitted + options_.max_deference);
  }
  /// The least loaded healthy device with a free slot for the job, or devices_.size().
  size_t FreeDevice(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Largest job that a healthy device takes; -1 with none healthy.
  int64_t LargestHealthyBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLaunch(size_t device, std::unique_ptr<Batch> batch, absl::Time now, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Takes jobs that will not start out of the accounts.
  void End(std::vector<std::unique_ptr<Job>> jobs, const absl::Status& status, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCancelled(std::vector<std::unique_ptr<Job>> jobs, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndExpired(absl::Time now, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(size_t jobs) ABSL_LOCKS_EXCLUDED(mutex_);
  /// After a job has been filed: whether a slot has freed or the devices for it have gone meanwhile.
  bool NeedsDispatch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends what can no longer start, then fills every free slot.
  void Dispatch(absl::Time now, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillSlots(absl::Time now, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishLoad() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void WaitInQueue(std::unique_ptr<Job> job) ABSL_LOCKS_EXCLUDED(mutex_);
  using StartBatch = void (BatchExecutor::*)(std::unique_ptr<Batch>, BatchExecutor::BatchDone);
  void Apply(Effects effects, StartBatch start = &BatchExecutor::Start) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBatchDone(size_t device, int64_t bytes, bool express, std::unique_ptr<Batch> batch)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Reap() ABSL_LOCKS_EXCLUDED(mutex_);
  /// When the queue next needs the timer.
  absl::Time NextWakeup() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::min(queue_.NextDeadline(), queue_.NextRelease());
  }
  void RunTimer() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<BatchExecutor*> executors_;
  const BatchingSchedulerOptions options_;
  const Clock& clock_;
  Metrics& metrics_;
  const int total_slots_;
  const int64_t largest_job_bytes_;  // that any device takes, healthy or not
  ParameterInterner parameters_;

  mutable std::mutex mutex_;
  std::vector<Device> devices_ ABSL_GUARDED_BY(mutex_);  // one per executor
  JobQueue queue_ ABSL_GUARDED_BY(mutex_);
  FlowAccounts flows_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t filing_jobs_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted, their key being made
  int64_t ending_jobs_ ABSL_GUARDED_BY(mutex_) = 0;  // no longer counted, `done` not yet returned
  int64_t largest_healthy_bytes_ ABSL_GUARDED_BY(mutex_);
  ServiceEstimate service_ ABSL_GUARDED_BY(mutex_);
  ReturnTimes return_times_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  std::condition_variable idle_;  // notified when Idle() becomes true

  // Timer thread.
  std::condition_variable timer_wakeup_;
  absl::Time timer_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool reap_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
};

}  // namespace norm::server
