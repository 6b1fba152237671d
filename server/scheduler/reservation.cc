#include <memory>

#include "server/scheduler/batching_scheduler.h"

namespace norm::server {

class BatchingScheduler::BudgetShare final : public Reservation {
 public:
  BudgetShare(BatchingScheduler& scheduler, uint64_t flow, int64_t bytes)
      : scheduler_(scheduler), flow_(flow), bytes_(bytes) {}
  ~BudgetShare() override { scheduler_.ReturnReserved(flow_, bytes_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  BatchingScheduler& scheduler_;
  const uint64_t flow_;
  const int64_t bytes_;
};

absl::StatusOr<std::unique_ptr<Reservation>> BatchingScheduler::Reserve(
    uint64_t flow, int64_t bytes, const NormProblem& largest_job) {
  Job any;
  any.flow = flow;
  any.problem = largest_job;
  any.workspace_bytes = WorkspaceBytes(largest_job);
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    absl::Status status = CheckJob(any, clock_.Now());
    if (status.ok()) status = MakeRoom(any, bytes, /*waits=*/false, effects);
    if (!status.ok()) return status;
    in_flight_bytes_ += bytes;
    flows_.Accept(flow, bytes, /*waits=*/false);
    PublishLoad();
  }
  Apply(std::move(effects));
  return std::make_unique<BudgetShare>(*this, flow, bytes);
}

absl::StatusOr<JobMemory> BatchingScheduler::LeaseMemory(const NormProblem& problem,
                                                         int64_t input_bytes) {
  const int64_t bytes = ProblemBytes(problem) + WorkspaceBytes(problem);
  BatchExecutor* least = nullptr;
  {
    std::lock_guard lock(mutex_);
    int64_t least_bytes = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      const int64_t outstanding = devices_[i].outstanding_bytes;
      if (!executors_[i]->healthy() || bytes > executors_[i]->max_batch_bytes()) continue;
      if (least == nullptr || outstanding < least_bytes) {
        least = executors_[i];
        least_bytes = outstanding;
      }
    }
  }
  if (least != nullptr) return least->LeaseMemory(problem, input_bytes);
  return WithRetryAfter(absl::UnavailableError("no healthy device takes this request"),
                        absl::Seconds(1));
}

void BatchingScheduler::ReturnReserved(uint64_t flow, int64_t bytes) {
  std::lock_guard lock(mutex_);
  in_flight_bytes_ -= bytes;
  flows_.Settle(flow, bytes);
  PublishLoad();
}

}  // namespace norm::server
