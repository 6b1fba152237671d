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

absl::StatusOr<std::unique_ptr<Reservation>> BatchingScheduler::Reserve(uint64_t flow,
                                                                        int64_t bytes,
                                                                        int64_t largest_job_bytes) {
  Job any;
  any.flow = flow;
  Effects effects;
  {
    std::lock_guard lock(mutex_);
    absl::Status status = CheckJob(any, largest_job_bytes, clock_.Now());
    if (status.ok()) status = MakeRoom(any, bytes, /*waits=*/false, effects);
    if (!status.ok()) return status;
    in_flight_bytes_ += bytes;
    flows_.Accept(flow, bytes, /*waits=*/false);
    PublishLoad();
  }
  Apply(std::move(effects));
  return std::make_unique<BudgetShare>(*this, flow, bytes);
}

void BatchingScheduler::ReturnReserved(uint64_t flow, int64_t bytes) {
  std::lock_guard lock(mutex_);
  in_flight_bytes_ -= bytes;
  flows_.Settle(flow, bytes);
  PublishLoad();
}

}  // namespace norm::server
