// Jobs that wait for a slot: fair between flows, urgent first within one, grouped by what may share
// a launch.
#pragma once

#include <array>
#include <compare>
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
  int64_t max_bytes = 0;  // of all its jobs, parameters counted once a segment
  // LaunchBytes of one job, larger ones are passed over; and of the batch.
  int64_t max_job_bytes = 0;
  // More segments than this gain little: the kernels launch anew for every few dozen.
  int64_t max_segments = kMaxBatchSegments;
};

struct JobQueueOptions {
  // What a job costs beside its bytes, in bytes; see JobQueue::Cost.
  int64_t request_cost_bytes = 0;
  // Of the cost served while jobs of both priorities wait, what bulk jobs get, in [1, 99].
  int bulk_share_percent = 10;
  // A group of jobs that is held (see Push) is released when it reaches either.
  int64_t full_rows = 0;
  int64_t full_bytes = 0;
};

/// A plain data structure: no clock, no lock, no callbacks. Every operation is O(log n) per job it
/// adds or takes; PopBatch also looks once at each flow that has jobs in the group, TakeCancelled
/// and TakeLargerThan at each job.
///
/// Order:      interactive jobs before bulk ones, but for the share that bulk ones are owed. Within
///             a priority, start-time fair queueing over flows (Goyal, Vin and Cheng, SIGCOMM
///             1996): each flow has a tag, the virtual time at which its next job is due, and the
///             least tag is served; a job served adds its cost to its flow's tag. A flow that comes
///             or comes back starts at the tag served last. Tags are forgotten when nothing of the
///             priority waits: without competition nobody owes anything. Within a flow, and between
///             equal tags, by (order time, arrival); the order time is the deadline, or what the
///             caller put in its place.
/// Merging:    the first job takes along, in the same order, what may share its launch; those are
///             charged like it.
class JobQueue {
 public:
  explicit JobQueue(JobQueueOptions options) : options_(options) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  /// `keys` are absent for a job that travels alone. A job with keys waits until `hold_until` for
  /// others of its group, unless the group is full or has been released: from then on, until it is
  /// empty, nothing of it is held.
  void Push(std::unique_ptr<Job> job, std::optional<JobKeys> keys, absl::Time order_time,
            absl::Time hold_until = absl::InfinitePast());
  /// Releases groups whose time has come.
  void Release(absl::Time now);
  /// When Release has something to do; infinite when no group is held.
  absl::Time NextRelease() const;

  struct Popped {
    std::unique_ptr<Batch> batch;                 // null when no released job fits
    std::vector<std::unique_ptr<Job>> cancelled;  // found on the way, taken out
  };
  /// Takes the first job that fits and, in order, the jobs that may share its launch until one
  /// exceeds a limit. Segments are in the order of their first jobs.
  Popped PopBatch(const BatchLimits& limits);

  /// The released job of a flow that would be served last, bulk before interactive, and is not
  /// reserved; null when it has none.
  std::unique_ptr<Job> TakeLast(uint64_t flow);
  /// Jobs whose deadline is at or before `now`.
  std::vector<std::unique_ptr<Job>> TakeExpired(absl::Time now);
  /// Jobs whose caller has left, in order of arrival.
  std::vector<std::unique_ptr<Job>> TakeCancelled();
  /// Jobs of more LaunchBytes than `bytes`, in order of arrival; -1 takes all.
  std::vector<std::unique_ptr<Job>> TakeLargerThan(int64_t bytes);

  bool empty() const { return entries_.empty(); }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  /// ProblemBytes of a flow's jobs here that are not reserved.
  int64_t BytesOf(uint64_t flow) const;
  /// Infinite when no job has one.
  absl::Time NextDeadline() const;

  /// What a job takes of a device: ProblemBytes, and request_cost_bytes for what a request costs
  /// whatever its size.
  int64_t Cost(const Job& job) const {
    return ProblemBytes(job.problem) + options_.request_cost_bytes;
  }
  /// Of all jobs here.
  int64_t cost() const { return classes_[0].cost + classes_[1].cost; }
  /// Launches that all jobs here need at least.
  int64_t launches() const;
  /// About what would be served before a job like this one, from below: jobs that come later are
  /// left out. Looks at each waiting job of its flow and at each other flow.
  int64_t CostAhead(const Job& job, absl::Time order_time) const;

 private:
  // A time, and the arrival number, which makes it unique.
  using Position = std::pair<absl::Time, uint64_t>;
  using Positions = absl::btree_set<Position>;

  /// Jobs that may share a launch, each in one of the sets.
  struct Group {
    std::array<absl::flat_hash_map<uint64_t, Positions>, kPriorityCount> flows;
    int64_t jobs = 0;
    int64_t rows = 0;
    int64_t bytes = 0;                             // parameters of each job left out
    uint64_t id = 0;                               // arrival number of its first job
    absl::Time held_until = absl::InfinitePast();  // in `held_` when later
    bool waited_out = false;                       // released by time
  };
  using Groups = absl::flat_hash_map<BatchKey, std::unique_ptr<Group>>;

  struct Entry {
    std::unique_ptr<Job> job;
    int64_t bytes = 0;
    int64_t cost = 0;
    absl::Time order_time;
    std::optional<JobKeys> keys;
  };
  struct Flow {
    int64_t tag = 0;
    int64_t bytes = 0;   // of all its jobs but reserved ones
    int64_t cost = 0;    // of all its jobs
    int64_t jobs = 0;    // held ones included
    Positions released;  // what may be served
  };
  /// A flow with released jobs.
  struct Turn {
    int64_t tag = 0;
    Position head;
    uint64_t flow = 0;
    friend auto operator<=>(const Turn&, const Turn&) = default;
  };
  struct Class {
    absl::flat_hash_map<uint64_t, std::unique_ptr<Flow>> flows;  // with jobs, or a tag after `now`
    absl::btree_set<Turn> turns;
    absl::btree_set<std::pair<int64_t, uint64_t>> resting;  // (tag, flow) of flows without jobs
    int64_t now = 0;                                        // the tag served last
    int64_t jobs = 0;
    int64_t cost = 0;
  };

  Class& ClassOf(Priority priority) { return classes_[static_cast<size_t>(priority)]; }
  const Class& ClassOf(Priority priority) const { return classes_[static_cast<size_t>(priority)]; }
  /// Runs `change` on a flow, which is made when missing, and brings turns and memory up to date.
  template <typename Change>
  void Update(Class& of, uint64_t flow_id, Change change);
  /// Moves `now`, and forgets flows that owe nothing any more.
  void AdvanceTo(Class& of, int64_t tag);
  void Unhold(Group& group);

  /// The priorities in the order in which they may lead a batch now.
  std::array<Priority, kPriorityCount> LeadingOrder() const;
  /// Starts the batch with the first job of a priority that fits; false when none does.
  bool Lead(Priority priority, const BatchLimits& limits, Popped& popped);
  void Fill(JobKeys first, const BatchLimits& limits, Popped& popped);
  /// Takes a job that is served: its flow and its priority are charged.
  std::unique_ptr<Job> Serve(uint64_t arrival);
  std::unique_ptr<Job> Take(uint64_t arrival);
  template <typename Predicate>
  std::vector<std::unique_ptr<Job>> TakeIf(Predicate wanted);

  const JobQueueOptions options_;
  absl::flat_hash_map<uint64_t, Entry> entries_;  // every job, by arrival number
  std::array<Class, kPriorityCount> classes_;
  absl::btree_set<Position> expiry_;  // (deadline, arrival) of jobs with a finite one
  Groups groups_;
  absl::btree_map<Position, Group*> held_;  // by (held_until, id)
  int64_t single_jobs_ = 0;                 // without a key
  int64_t grouped_bytes_ = 0;               // of all groups, as Group::bytes
  // What bulk jobs are owed, in cost * percent: grows by bulk_share_percent of what interactive
  // jobs are served while bulk ones wait.
  int64_t bulk_credit_ = 0;
  uint64_t arrivals_ = 0;
};

/// Whether the caller has left.
inline bool IsCancelled(const Job& job) {
  return job.cancelled != nullptr && job.cancelled->load(std::memory_order_acquire);
}

}  // namespace norm::server
