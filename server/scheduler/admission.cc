// The part of BatchingScheduler that decides who gets in.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/scheduler/batching_scheduler.h"

namespace norm::server {
namespace {

// Draining and device loss end with another process; a second is a load balancer's reaction time.
constexpr absl::Duration kReplacementRetryAfter = absl::Seconds(1);

}  // namespace

absl::Status BatchingScheduler::CheckJob(const Job& job, absl::Time now) {
  if (draining_) {
    return Refuse(RejectReason::kDraining, "server is draining", kReplacementRetryAfter);
  }
  const int64_t bytes = ProblemBytes(job.problem);
  if (bytes > options_.max_in_flight_bytes) {
    metrics_.RecordRejected(RejectReason::kTooLarge);
    return absl::ResourceExhaustedError(
        absl::StrCat("request takes ", bytes, " bytes of inputs and outputs, the limit is ",
                     options_.max_in_flight_bytes, " (all requests in flight)"));
  }
  if (LaunchBytes(job) > largest_job_bytes_) {
    metrics_.RecordRejected(RejectReason::kTooLarge);
    return absl::ResourceExhaustedError(absl::StrCat(
        "request takes ", bytes, " bytes of inputs and outputs and ", job.workspace_bytes,
        " of workspace, the limit is ", largest_job_bytes_, " (one launch of any device)"));
  }
  if (job.deadline <= now) {
    metrics_.RecordDeadlineExceeded(Stage::kQueue);
    return absl::DeadlineExceededError("deadline passed before the request was queued");
  }
  if (IsCancelled(job)) {
    metrics_.RecordCancelled(Stage::kQueue);
    return absl::CancelledError("caller left before the request was queued");
  }
  if (LaunchBytes(job) > LargestHealthyBytes()) {
    return Refuse(RejectReason::kNoDevice, "no healthy device takes this request",
                  kReplacementRetryAfter);
  }
  return absl::OkStatus();
}

absl::Status BatchingScheduler::CheckWait(const Job& job, absl::Time now) {
  if (job.deadline == absl::InfiniteFuture() || queue_.empty() || !service_.known()) {
    return absl::OkStatus();
  }
  const auto cost = static_cast<double>(queue_.cost());
  const absl::Duration own = service_.Service(1.0, static_cast<double>(queue_.Cost(job)));
  const absl::Duration queued =
      service_.Service(static_cast<double>(queue_.launches()), cost) / total_slots_;
  if (now + queued + own <= job.deadline) return absl::OkStatus();
  // Behind everything it would be late; but not all of that comes before it.
  const double ahead = static_cast<double>(queue_.CostAhead(job, OrderTime(job, now)));
  const absl::Duration wait = queued * (ahead / cost);
  if (now + wait + own <= job.deadline) return absl::OkStatus();
  return Refuse(RejectReason::kDeadline,
                absl::StrCat("deadline is in ", absl::FormatDuration(job.deadline - now),
                             ", the request would wait ", absl::FormatDuration(wait), " and take ",
                             absl::FormatDuration(own)),
                QueueRetryAfter(queue_.Cost(job)));
}

absl::Status BatchingScheduler::MakeRoom(const Job& job, int64_t bytes, bool waits,
                                         Effects& effects) {
  const FlowAccounts::Account own = flows_.Of(job.flow);
  const int64_t missing = bytes - (options_.max_in_flight_bytes - in_flight_bytes_);
  const bool may_displace_bytes =
      own.bytes == 0 || own.bytes + bytes <= flows_.Share(options_.max_in_flight_bytes, job.flow);
  if (missing > 0 && !(may_displace_bytes && DisplaceBytes(job.flow, missing, effects))) {
    return Refuse(RejectReason::kByteBudget,
                  absl::StrCat("requests in flight take ", in_flight_bytes_, " bytes and this one ",
                               bytes, ", the limit is ", options_.max_in_flight_bytes),
                  QueueRetryAfter(queue_.Cost(job)));
  }
  const int64_t waiting = queue_.size() + filing_jobs_;
  const bool may_displace_waiting = own.waiting_requests < QueuePart(job.flow);
  if (waits && waiting >= options_.max_queue_requests &&
      !(may_displace_waiting && DisplaceWaiting(job.flow, effects))) {
    return Refuse(RejectReason::kQueueFull,
                  absl::StrCat("queue is full: ", waiting, " requests wait, the limit is ",
                               options_.max_queue_requests),
                  QueueRetryAfter(queue_.Cost(job)));
  }
  return absl::OkStatus();
}

bool BatchingScheduler::DisplaceBytes(uint64_t flow, int64_t missing, Effects& effects) {
  const int64_t share = flows_.Share(options_.max_in_flight_bytes, flow);
  // What each flow over its share gives up, the most first.
  std::vector<std::pair<int64_t, uint64_t>> excesses;
  int64_t available = 0;
  for (const auto& [other, account] : flows_.accounts()) {
    const int64_t excess = std::min(account.bytes - share, queue_.BytesOf(other));
    if (other == flow || excess <= 0) continue;
    excesses.emplace_back(-excess, other);
    available += excess;
  }
  if (available < missing) return false;
  std::sort(excesses.begin(), excesses.end());
  queue_.Release(absl::InfiniteFuture());
  const int64_t target = in_flight_bytes_ - missing;
  for (const auto& [excess, other] : excesses) {
    const int64_t floor = flows_.Of(other).bytes + excess;
    while (in_flight_bytes_ > target && flows_.Of(other).bytes > floor) {
      std::unique_ptr<Job> last = queue_.TakeLast(other);
      if (last == nullptr) break;
      Displace(std::move(last), effects);
    }
  }
  return true;
}

int64_t BatchingScheduler::QueuePart(uint64_t flow) const {
  return std::max(int64_t{1}, flows_.Share(options_.max_queue_requests, flow));
}

bool BatchingScheduler::DisplaceWaiting(uint64_t flow, Effects& effects) {
  const int64_t part = QueuePart(flow);
  std::pair<int64_t, uint64_t> most(part, 0);
  for (const auto& [other, account] : flows_.accounts()) {
    if (other != flow) most = std::max(most, std::pair(account.waiting_requests, other));
  }
  if (most.first <= part) return false;
  queue_.Release(absl::InfiniteFuture());
  std::unique_ptr<Job> last = queue_.TakeLast(most.second);
  if (last == nullptr) return false;  // its jobs are still on their way into the queue
  Displace(std::move(last), effects);
  return true;
}

void BatchingScheduler::Displace(std::unique_ptr<Job> job, Effects& effects) {
  metrics_.RecordRejected(RejectReason::kDisplaced);
  const absl::Duration retry_after = QueueRetryAfter(queue_.Cost(*job));
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(std::move(job));
  End(std::move(jobs),
      WithRetryAfter(
          absl::UnavailableError("the server is full, and this request's sender had more "
                                 "in it than its equal part"),
          retry_after),
      effects);
}

absl::Status BatchingScheduler::Refuse(RejectReason reason, const std::string& message,
                                       absl::Duration retry_after) {
  metrics_.RecordRejected(reason);
  return WithRetryAfter(absl::UnavailableError(message), retry_after);
}

absl::Duration BatchingScheduler::QueueRetryAfter(int64_t cost) {
  return return_times_.Next(clock_.Now(),
                            service_.RetryAfter(queue_.launches(), queue_.cost(), total_slots_),
                            service_.Share(cost, total_slots_));
}

size_t BatchingScheduler::FreeDevice(const Job& job) const {
  const int64_t bytes = ProblemBytes(job.problem);
  size_t best = devices_.size();
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].free_slots > 0 && executors_[i]->healthy() &&
        (bytes <= options_.express_bytes || devices_[i].other_slots > 0) &&
        LaunchBytes(job) <= executors_[i]->max_batch_bytes() &&
        (best == devices_.size() ||
         devices_[i].outstanding_bytes < devices_[best].outstanding_bytes)) {
      best = i;
    }
  }
  return best;
}

int64_t BatchingScheduler::LargestHealthyBytes() const {
  int64_t largest = -1;
  for (const BatchExecutor* executor : executors_) {
    if (executor->healthy()) {
      largest = std::max(largest, executor->max_batch_bytes());
    }
  }
  return largest;
}

bool BatchingScheduler::NeedsDispatch() const {
  const int64_t largest = LargestHealthyBytes();
  if (largest < 0 || largest < largest_healthy_bytes_) return true;
  for (size_t i = 0; i < devices_.size(); ++i) {
    // Those of a lost device stay free.
    if (devices_[i].free_slots > 0 && executors_[i]->healthy()) return true;
  }
  return false;
}

}  // namespace norm::server
