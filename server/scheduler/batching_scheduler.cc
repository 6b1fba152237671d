#include "server/scheduler/batching_scheduler.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/brief_lock.h"
#include "server/scheduler/job_completion.h"
#include "server/scheduler/submitting.h"

namespace norm::server {
namespace {

// Device loss ends with another process; a second is a load balancer's reaction time.
constexpr absl::Duration kReplacementRetryAfter = absl::Seconds(1);
// Departed callers are looked for at most this often: a scan visits every waiting job.
constexpr absl::Duration kReapInterval = absl::Milliseconds(1);

/// What a job adds to those in flight: a reserved one was counted before.
int64_t CountedBytes(const Job& job) { return job.reserved ? 0 : ProblemBytes(job.problem); }

/// Whether it may share a launch; whoever brings memory does not.
bool MayShare(const Job& job) {
  return job.memory.outputs == nullptr && SharesLaunches(job.problem);
}

int TotalSlots(const std::vector<BatchExecutor*>& executors) {
  return std::accumulate(executors.begin(), executors.end(), 0,
                         [](int sum, const BatchExecutor* e) { return sum + e->slots(); });
}

int64_t LargestJobBytes(const std::vector<BatchExecutor*>& executors) {
  int64_t largest = -1;
  for (const BatchExecutor* e : executors) largest = std::max(largest, e->max_batch_bytes());
  return largest;
}

}  // namespace

BatchingScheduler::BatchingScheduler(std::vector<BatchExecutor*> executors,
                                     const BatchingSchedulerOptions& options, const Clock& clock,
                                     Metrics& metrics)
    : executors_(std::move(executors)),
      options_(options),
      clock_(clock),
      metrics_(metrics),
      total_slots_(TotalSlots(executors_)),
      largest_job_bytes_(LargestJobBytes(executors_)),
      queue_({.request_cost_bytes = options_.request_cost_bytes,
              .bulk_share_percent = options_.bulk_share_percent,
              .full_rows = options_.max_batch_rows,
              .full_bytes = options_.max_batch_bytes}),
      largest_healthy_bytes_(largest_job_bytes_) {
  for (const BatchExecutor* e : executors_) {
    devices_.push_back(Device{e->slots(), std::max(1, e->slots() - options_.express_slots)});
  }
  metrics_.SetAdmissionLimits(options_.max_queue_requests, options_.max_in_flight_bytes);
  if (options_.reaping == Reaping::kTimerThread) {
    timer_ = std::thread([this] { RunTimer(); });
  }
}

BatchingScheduler::~BatchingScheduler() {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    draining_ = true;
    stopping_ = true;
    timer_wakeup_.notify_one();
    End(queue_.TakeLargerThan(-1), absl::UnavailableError("server is shutting down"), effects);
  }
  Apply(std::move(effects));
  if (timer_.joinable()) {
    timer_.join();
  }
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return Idle(); });
}

absl::Status BatchingScheduler::Submit(std::unique_ptr<Job>& job) {
  const int64_t bytes = ProblemBytes(job->problem);
  const absl::Time now = clock_.Now();
  const bool gathers = options_.max_queue_delay > absl::ZeroDuration() && MayShare(*job);
  job->workspace_bytes = WorkspaceBytes(job->problem);
  Effects effects;
  absl::Status status;
  {
    BriefLock lock(mutex_);
    const size_t device = FreeDevice(*job);
    const bool waits = device == devices_.size() || gathers;
    status = CheckJob(*job, now);
    if (!job->reserved) {
      if (status.ok() && device == devices_.size()) status = CheckWait(*job, now);
      if (status.ok()) status = MakeRoom(*job, bytes, waits, effects);
    }
    if (!status.ok()) return status;
    job->submitted = now;
    ++in_flight_requests_;
    in_flight_bytes_ += CountedBytes(*job);
    flows_.Accept(job->flow, CountedBytes(*job), waits);
    if (waits) {
      ++filing_jobs_;
    } else {
      auto batch = std::make_unique<Batch>();
      batch->reason = MayShare(*job) ? BatchCloseReason::kSlotFree : BatchCloseReason::kSingle;
      batch->jobs.push_back(std::move(job));
      AddLaunch(device, std::move(batch), now, effects);
    }
    PublishLoad();
  }
  Submitting here;
  Apply(std::move(effects), here.nested() ? &BatchExecutor::Start : &BatchExecutor::Run);
  if (job != nullptr) WaitInQueue(std::move(job));
  return absl::OkStatus();
}

void BatchingScheduler::WaitInQueue(std::unique_ptr<Job> job) {
  std::optional<JobKeys> keys;
  if (MayShare(*job)) {
    keys = MakeJobKeys(*job, parameters_);
  }
  Effects effects;
  {
    BriefLock lock(mutex_);
    --filing_jobs_;
    absl::Time hold_until = absl::InfinitePast();
    if (keys.has_value() && options_.max_queue_delay > absl::ZeroDuration()) {
      // Not so long that the launch would come too late.
      const absl::Duration service = service_.Service(1.0, static_cast<double>(queue_.Cost(*job)));
      hold_until = std::min(job->submitted + options_.max_queue_delay, job->deadline - service);
    }
    const absl::Time order_time = OrderTime(*job, job->submitted);
    // A device that it needs may have gone while it was filed, after those that wait were looked
    // through: it is looked at then (NeedsDispatch).
    largest_healthy_bytes_ = std::max(largest_healthy_bytes_, LaunchBytes(*job));
    queue_.Push(std::move(job), std::move(keys), order_time, hold_until);
    if (NextWakeup() < timer_until_) timer_wakeup_.notify_one();
    if (NeedsDispatch()) Dispatch(clock_.Now(), effects);
  }
  Apply(std::move(effects));
}

int64_t BatchingScheduler::WorkspaceBytes(const NormProblem& problem) const {
  if (ProblemBytes(problem) <= options_.express_bytes) return 0;
  int64_t most = 0;
  for (const BatchExecutor* e : executors_) most = std::max(most, e->WorkspaceBytes(problem));
  return most;
}

void BatchingScheduler::AddLaunch(size_t device, std::unique_ptr<Batch> batch, absl::Time now,
                                  Effects& effects) {
  int64_t bytes = 0;
  for (const auto& job : batch->jobs) {
    bytes += ProblemBytes(job->problem);
    metrics_.RecordStage(Stage::kQueue, now - job->submitted);
  }
  batch->started = now;
  // Filled for an express slot, parameters counted once, or small by itself.
  const bool express = bytes <= options_.express_bytes || devices_[device].other_slots == 0;
  --devices_[device].free_slots;
  if (!express) --devices_[device].other_slots;
  devices_[device].outstanding_bytes += bytes;
  effects.launches.push_back(Launch{device, bytes, express, std::move(batch)});
}

void BatchingScheduler::Settle(const Job& job) {
  --in_flight_requests_;
  in_flight_bytes_ -= CountedBytes(job);
  flows_.Settle(job.flow, CountedBytes(job));
  ++ending_jobs_;
}

void BatchingScheduler::Forget(size_t jobs) {
  BriefLock lock(mutex_);
  ending_jobs_ -= static_cast<int64_t>(jobs);
  if (Idle()) {
    // With the lock held: whoever waits may destroy the scheduler as soon as it is released.
    idle_.notify_all();
  }
}

void BatchingScheduler::End(std::vector<std::unique_ptr<Job>> jobs, const absl::Status& status,
                            Effects& effects) {
  for (auto& job : jobs) {
    flows_.StopWaiting(job->flow);
    Settle(*job);
    effects.endings.push_back(Ending{std::move(job), status});
  }
}

void BatchingScheduler::EndCancelled(std::vector<std::unique_ptr<Job>> jobs, Effects& effects) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    metrics_.RecordCancelled(Stage::kQueue);
  }
  End(std::move(jobs), absl::CancelledError("caller left while the request waited"), effects);
}

void BatchingScheduler::EndExpired(absl::Time now, Effects& effects) {
  auto jobs = queue_.TakeExpired(now);
  for (size_t i = 0; i < jobs.size(); ++i) {
    metrics_.RecordDeadlineExceeded(Stage::kQueue);
  }
  End(std::move(jobs), absl::DeadlineExceededError("deadline passed while the request waited"),
      effects);
}

void BatchingScheduler::Dispatch(absl::Time now, Effects& effects) {
  EndExpired(now, effects);
  queue_.Release(now);
  const int64_t largest = LargestHealthyBytes();
  if (largest < largest_healthy_bytes_ || largest < 0) {
    End(queue_.TakeLargerThan(largest),
        WithRetryAfter(absl::UnavailableError("the device that could run this request is lost"),
                       kReplacementRetryAfter),
        effects);
  }
  largest_healthy_bytes_ = largest;
  if (!queue_.empty()) {
    FillSlots(now, effects);
  }
  PublishLoad();
}

void BatchingScheduler::FillSlots(absl::Time now, Effects& effects) {
  std::vector<size_t> order(devices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  bool progress = true;
  while (progress && !queue_.empty()) {
    progress = false;
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return std::pair(devices_[a].outstanding_bytes, a) <
             std::pair(devices_[b].outstanding_bytes, b);
    });
    for (const size_t i : order) {
      if (devices_[i].free_slots == 0 || !executors_[i]->healthy()) {
        continue;
      }
      int64_t device_bytes = executors_[i]->max_batch_bytes();
      if (devices_[i].other_slots == 0)
        device_bytes = std::min(device_bytes, options_.express_bytes);
      JobQueue::Popped popped =
          queue_.PopBatch({options_.max_batch_rows,
                           std::min(options_.max_batch_bytes, device_bytes), device_bytes});
      EndCancelled(std::move(popped.cancelled), effects);
      if (popped.batch != nullptr) {
        for (const auto& job : popped.batch->jobs) flows_.StopWaiting(job->flow);
        AddLaunch(i, std::move(popped.batch), now, effects);
        progress = true;
        break;
      }
    }
  }
}

void BatchingScheduler::Apply(Effects effects, StartBatch start) {
  for (Launch& launch : effects.launches) {
    (executors_[launch.device]->*start)(std::move(launch.batch),
                                        [this, device = launch.device, bytes = launch.bytes,
                                         express = launch.express](std::unique_ptr<Batch> batch) {
                                          OnBatchDone(device, bytes, express, std::move(batch));
                                        });
  }
  if (effects.endings.empty()) {
    return;
  }
  const absl::Time now = clock_.Now();
  for (Ending& ending : effects.endings) {
    CompleteUnstarted(std::move(ending.job), std::move(ending.status), now);
  }
  Forget(effects.endings.size());
}

void BatchingScheduler::OnBatchDone(size_t device, int64_t bytes, bool express,
                                    std::unique_ptr<Batch> batch) {
  const size_t jobs = batch->jobs.size();
  Effects effects;
  {
    BriefLock lock(mutex_);
    const absl::Time now = clock_.Now();
    ++devices_[device].free_slots;
    if (!express) ++devices_[device].other_slots;
    devices_[device].outstanding_bytes -= bytes;
    service_.AddBatch(now - batch->started,
                      bytes + static_cast<int64_t>(jobs) * options_.request_cost_bytes);
    for (const auto& job : batch->jobs) {
      Settle(*job);
    }
    Dispatch(now, effects);
  }
  // The device first: what is done can wait for the moment that starting the next batch takes.
  Apply(std::move(effects));
  CompleteBatch(std::move(batch), executors_[device]->device_name());
  Forget(jobs);
}

void BatchingScheduler::ReapQueue() {
  if (options_.reaping == Reaping::kByCaller) {
    Reap();
    return;
  }
  std::lock_guard lock(mutex_);
  reap_requested_ = true;
  timer_wakeup_.notify_one();
}

void BatchingScheduler::Reap() {
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    EndCancelled(queue_.TakeCancelled(), effects);
    Dispatch(clock_.Now(), effects);
  }
  Apply(std::move(effects));
}

void BatchingScheduler::RunTimer() {
  while (true) {
    bool asked = false;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && !reap_requested_ && clock_.Now() < NextWakeup()) {
        timer_until_ = NextWakeup();
        if (timer_until_ == absl::InfiniteFuture()) {
          timer_wakeup_.wait(lock);
        } else {
          timer_wakeup_.wait_until(lock, absl::ToChronoTime(timer_until_));
        }
      }
      timer_until_ = absl::InfinitePast();  // awake: nobody need wake it
      if (stopping_) {
        return;
      }
      asked = std::exchange(reap_requested_, false);
    }
    Reap();
    if (asked) {
      std::unique_lock lock(mutex_);
      timer_wakeup_.wait_for(lock, absl::ToChronoMicroseconds(kReapInterval),
                             [this] { return stopping_; });
    }
  }
}

SchedulerLoad BatchingScheduler::Load() const {
  std::lock_guard lock(mutex_);
  return {queue_.size() + filing_jobs_, in_flight_requests_, in_flight_bytes_};
}

void BatchingScheduler::StartDraining() {
  std::lock_guard lock(mutex_);
  draining_ = true;
  metrics_.SetDraining(true);
}

absl::Status BatchingScheduler::Drain(absl::Time deadline) {
  StartDraining();
  const auto idle = [this] { return Idle(); };
  std::unique_lock lock(mutex_);
  if (deadline == absl::InfiniteFuture()) {
    idle_.wait(lock, idle);
  } else if (!idle_.wait_until(lock, absl::ToChronoTime(deadline), idle)) {
    return absl::DeadlineExceededError(
        absl::StrCat(in_flight_requests_ + ending_jobs_, " requests still in flight"));
  }
  return absl::OkStatus();
}

void BatchingScheduler::PublishLoad() {
  metrics_.SetQueue(queue_.size() + filing_jobs_, in_flight_requests_, in_flight_bytes_);
}

bool BatchingScheduler::Idle() const { return in_flight_requests_ == 0 && ending_jobs_ == 0; }

}  // namespace norm::server
