#include "server/scheduler/job_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace norm::server {
namespace {

/// The jobs of a batch on their way in, segment by segment.
class SegmentedJobs {
 public:
  /// The segment that a job with these keys belongs to, or count() when it starts one.
  size_t Find(const std::optional<SegmentKey>& key) const {
    if (!key.has_value()) {
      return count();
    }
    const auto found = index_.find(*key);
    return found == index_.end() ? count() : found->second;
  }
  void Add(size_t segment, std::optional<SegmentKey> key, std::unique_ptr<Job> job) {
    if (segment == count()) {
      segments_.emplace_back();
      if (key.has_value()) {
        index_.emplace(*std::move(key), segment);
      }
    }
    segments_[segment].push_back(std::move(job));
  }
  size_t count() const { return segments_.size(); }

  void MoveTo(Batch& batch) {
    for (auto& segment : segments_) {
      batch.segment_jobs.push_back(static_cast<int64_t>(segment.size()));
      std::move(segment.begin(), segment.end(), std::back_inserter(batch.jobs));
    }
  }

 private:
  std::vector<std::vector<std::unique_ptr<Job>>> segments_;
  absl::flat_hash_map<SegmentKey, size_t> index_;
};

}  // namespace

void JobQueue::Push(std::unique_ptr<Job> job, std::optional<JobKeys> keys, absl::Time order_time) {
  const Position position(order_time, arrivals_++);
  if (job->deadline != absl::InfiniteFuture()) {
    expiry_.emplace(Position(job->deadline, position.second), position);
  }
  if (keys.has_value()) {
    groups_[keys->batch].insert(position);
  }
  const int64_t bytes = ProblemBytes(job->problem);
  queue_.emplace(position, Entry{std::move(job), bytes, std::move(keys)});
}

JobQueue::Popped JobQueue::PopBatch(const BatchLimits& limits) {
  Popped popped;
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (IsCancelled(*it->second.job)) {
      const Position position = it->first;
      popped.cancelled.push_back(Take(it));
      it = queue_.upper_bound(position);
      continue;
    }
    if (it->second.bytes > limits.max_job_bytes) {
      ++it;
      continue;
    }
    popped.batch = std::make_unique<Batch>();
    std::optional<JobKeys> keys = it->second.keys;
    popped.batch->jobs.push_back(Take(it));
    popped.batch->reason = BatchCloseReason::kSingle;
    if (keys.has_value()) {
      Fill(*std::move(keys), limits, popped);
    }
    break;
  }
  return popped;
}

void JobQueue::Fill(JobKeys first, const BatchLimits& limits, Popped& popped) {
  Batch& batch = *popped.batch;
  int64_t rows = batch.jobs.front()->problem.rows;
  int64_t bytes = ProblemBytes(batch.jobs.front()->problem);
  SegmentedJobs segments;
  segments.Add(0, std::move(first.segment), std::move(batch.jobs.front()));
  batch.jobs.clear();
  batch.reason = BatchCloseReason::kSlotFree;
  for (auto group = groups_.find(first.batch); group != groups_.end();
       group = groups_.find(first.batch)) {
    const auto it = queue_.find(*group->second.begin());
    const NormProblem& problem = it->second.job->problem;
    if (IsCancelled(*it->second.job)) {
      popped.cancelled.push_back(Take(it));
      continue;
    }
    const size_t segment = segments.Find(it->second.keys->segment);
    const bool starts_one = segment == segments.count();
    const int64_t more_bytes = it->second.bytes - (starts_one ? 0 : ParameterBytes(problem));
    if (problem.rows > limits.max_rows - rows) {
      batch.reason = BatchCloseReason::kRows;
      break;
    }
    if (more_bytes > limits.max_bytes - bytes) {
      batch.reason = BatchCloseReason::kBytes;
      break;
    }
    if (starts_one && static_cast<int64_t>(segments.count()) >= limits.max_segments) {
      batch.reason = BatchCloseReason::kSegments;
      break;
    }
    rows += problem.rows;
    bytes += more_bytes;
    std::optional<SegmentKey> key = std::move(it->second.keys->segment);
    segments.Add(segment, std::move(key), Take(it));
  }
  segments.MoveTo(batch);
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeExpired(absl::Time now) {
  std::vector<std::unique_ptr<Job>> taken;
  while (!expiry_.empty() && expiry_.begin()->first.first <= now) {
    taken.push_back(Take(queue_.find(expiry_.begin()->second)));
  }
  return taken;
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeCancelled() {
  return TakeIf([](const Entry& entry) { return IsCancelled(*entry.job); });
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeLargerThan(int64_t bytes) {
  return TakeIf([bytes](const Entry& entry) { return entry.bytes > bytes; });
}

absl::Time JobQueue::NextDeadline() const {
  return expiry_.empty() ? absl::InfiniteFuture() : expiry_.begin()->first.first;
}

std::unique_ptr<Job> JobQueue::Take(Queue::iterator it) {
  const Position position = it->first;
  Entry& entry = it->second;
  if (entry.job->deadline != absl::InfiniteFuture()) {
    expiry_.erase(Position(entry.job->deadline, position.second));
  }
  if (entry.keys.has_value()) {
    const auto group = groups_.find(entry.keys->batch);
    group->second.erase(position);
    if (group->second.empty()) {
      groups_.erase(group);
    }
  }
  std::unique_ptr<Job> job = std::move(entry.job);
  queue_.erase(it);
  return job;
}

template <typename Predicate>
std::vector<std::unique_ptr<Job>> JobQueue::TakeIf(Predicate wanted) {
  std::vector<Position> positions;
  for (const auto& [position, entry] : queue_) {
    if (wanted(entry)) {
      positions.push_back(position);
    }
  }
  std::vector<std::unique_ptr<Job>> taken;
  taken.reserve(positions.size());
  for (const Position& position : positions) {
    taken.push_back(Take(queue_.find(position)));
  }
  return taken;
}

}  // namespace norm::server
