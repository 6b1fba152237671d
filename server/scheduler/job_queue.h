// Jobs that wait for a slot, ordered by urgency and grouped by what may share a launch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/scheduler/batch_executor.h"
#include "server/scheduler/batch_key.h"
#include "server/scheduler/job.h"

namespace norm::server {

inline constexpr int64_t kMaxBatchSegments = 64;

/// What a batch may hold. A single job is bounded by max_job_bytes alone.
struct BatchLimits {
  int64_t max_rows = 0;
  int64_t max_bytes = 0;      // of all its jobs, parameters counted once a segment
  int64_t max_job_bytes = 0;  // of one job: larger ones are passed over
  // More segments than this gain little: the kernels launch anew for every few dozen.
  int64_t max_segments = kMaxBatchSegments;
};

/// A plain data structure: no clock, no lock, no callbacks. Every operation is O(log n) per job it
/// adds or takes, except TakeCancelled and TakeLargerThan, which look at each job.
///
/// Order:      jobs leave by (order time, arrival); the order time is the deadline, or what the
///             caller put in its place.
/// Invariant:  `queue_` holds every job, `expiry_` those with a finite deadline, `groups_` those
///             with keys.
class JobQueue {
 public:
  JobQueue() = default;
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  /// `keys` are absent for a job that travels alone.
  void Push(std::unique_ptr<Job> job, std::optional<JobKeys> keys, absl::Time order_time);

  struct Popped {
    std::unique_ptr<Batch> batch;                 // null when no waiting job fits
    std::vector<std::unique_ptr<Job>> cancelled;  // found on the way, taken out
  };
  /// Takes the first job that fits and, in order, the jobs that may share its launch until one
  /// exceeds a limit. Segments are in the order of their first jobs.
  Popped PopBatch(const BatchLimits& limits);

  /// Jobs whose deadline is at or before `now`.
  std::vector<std::unique_ptr<Job>> TakeExpired(absl::Time now);
  /// Jobs whose caller has left.
  std::vector<std::unique_ptr<Job>> TakeCancelled();
  /// Jobs of more than `bytes`; -1 takes all.
  std::vector<std::unique_ptr<Job>> TakeLargerThan(int64_t bytes);

  bool empty() const { return queue_.empty(); }
  int64_t size() const { return static_cast<int64_t>(queue_.size()); }
  /// Infinite when no job has one.
  absl::Time NextDeadline() const;

 private:
  // A time, and the arrival number, which makes it unique.
  using Position = std::pair<absl::Time, uint64_t>;
  using Group = absl::btree_set<Position>;
  using Groups = absl::flat_hash_map<BatchKey, Group>;

  struct Entry {
    std::unique_ptr<Job> job;
    int64_t bytes = 0;
    std::optional<JobKeys> keys;
  };
  using Queue = absl::btree_map<Position, Entry>;

  std::unique_ptr<Job> Take(Queue::iterator it);
  template <typename Predicate>
  std::vector<std::unique_ptr<Job>> TakeIf(Predicate wanted);
  void Fill(JobKeys first, const BatchLimits& limits, Popped& popped);

  Queue queue_;
  absl::btree_map<Position, Position> expiry_;  // (deadline, arrival) to the position in queue_
  Groups groups_;
  uint64_t arrivals_ = 0;
};

/// Whether the caller has left.
inline bool IsCancelled(const Job& job) {
  return job.cancelled != nullptr && job.cancelled->load(std::memory_order_acquire);
}

}  // namespace norm::server
