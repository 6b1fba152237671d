#include "server/scheduler/job_queue.h"

namespace norm::server {

void JobQueue::Push(std::unique_ptr<Job> job, std::optional<BatchKey> key, absl::Time order_time) {
  const Position position(order_time, arrivals_++);
  if (job->deadline != absl::InfiniteFuture()) {
    expiry_.emplace(Position(job->deadline, position.second), position);
  }
  if (key.has_value()) {
    groups_[*key].insert(position);
  }
  const int64_t bytes = ProblemBytes(job->problem);
  queue_.emplace(position, Entry{std::move(job), bytes, std::move(key)});
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
    const std::optional<BatchKey> key = it->second.key;
    popped.batch->jobs.push_back(Take(it));
    popped.batch->reason = BatchCloseReason::kSingle;
    if (key.has_value()) {
      Fill(*key, limits, popped);
    }
    break;
  }
  return popped;
}

void JobQueue::Fill(const BatchKey& key, const BatchLimits& limits, Popped& popped) {
  Batch& batch = *popped.batch;
  int64_t rows = batch.jobs.front()->problem.rows;
  int64_t bytes = ProblemBytes(batch.jobs.front()->problem);
  batch.reason = BatchCloseReason::kSlotFree;
  for (auto group = groups_.find(key); group != groups_.end(); group = groups_.find(key)) {
    const auto it = queue_.find(*group->second.begin());
    const NormProblem& problem = it->second.job->problem;
    if (IsCancelled(*it->second.job)) {
      popped.cancelled.push_back(Take(it));
      continue;
    }
    const int64_t more_bytes = it->second.bytes - ParameterBytes(problem);
    if (problem.rows > limits.max_rows - rows) {
      batch.reason = BatchCloseReason::kRows;
      return;
    }
    if (more_bytes > limits.max_bytes - bytes) {
      batch.reason = BatchCloseReason::kBytes;
      return;
    }
    rows += problem.rows;
    bytes += more_bytes;
    batch.jobs.push_back(Take(it));
  }
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
  if (entry.key.has_value()) {
    const auto group = groups_.find(*entry.key);
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
