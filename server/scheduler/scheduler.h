// The scheduler as the transport sees it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/scheduler/job.h"

namespace norm::server {

/// Counters of a scheduler at one moment.
struct SchedulerLoad {
  int64_t queued_requests = 0;
  int64_t in_flight_requests = 0;  // queued ones included
  int64_t in_flight_bytes = 0;     // ProblemBytes of all of them
};

/// Room in the byte budget, held until destruction. Must not outlive the scheduler.
class Reservation {
 public:
  virtual ~Reservation() = default;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// Takes the job on OK and calls its `done` exactly once, maybe on this thread before it returns;
  /// on any other status the job stays with the caller (`job` keeps its value) and `done` is not
  /// called. Waits at most for a small job that is computed at once (BatchExecutor::Run), and for
  /// nothing else.
  ///
  /// Errors: UNAVAILABLE (see RetryAfter) when the queue or the byte budget is full, when draining,
  ///         or when no device is healthy; RESOURCE_EXHAUSTED when the job alone exceeds a limit;
  ///         DEADLINE_EXCEEDED when its deadline has passed; CANCELLED when its caller has left.
  virtual absl::Status Submit(std::unique_ptr<Job>& job) = 0;

  /// Counts `bytes` as in flight for a request of this flow that comes as several jobs
  /// (Job::reserved), none larger than `largest_job`, which the caller keeps within them: admitted
  /// once, such a request is not refused or displaced half-way because others have filled the
  /// server. Errors: as Submit, of limits, budget, draining and devices.
  virtual absl::StatusOr<std::unique_ptr<Reservation>> Reserve(uint64_t flow, int64_t bytes,
                                                               const NormProblem& largest_job) = 0;

  /// Memory of the device that is likely to run this job (Job::memory); see
  /// BatchExecutor::LeaseMemory, whose errors it has.
  virtual absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem,
                                                int64_t input_bytes) = 0;

  /// Completes queued jobs whose deadline has passed or whose `cancelled` is set. Called by the
  /// transport when it sees a caller leave, and by the scheduler's own timer.
  virtual void ReapQueue() = 0;

  virtual SchedulerLoad Load() const = 0;
};

/// Attaches to an UNAVAILABLE status when to try again; the transport turns it into RetryInfo and
/// pushback metadata.
absl::Status WithRetryAfter(absl::Status status, absl::Duration retry_after);
/// Zero when the status carries none.
absl::Duration RetryAfter(const absl::Status& status);

}  // namespace norm::server
