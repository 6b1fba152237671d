#include <memory>

#include "absl/strings/str_cat.h"
#include "server/scheduler/batching_scheduler.h"

namespace norm::server {

class BatchingScheduler::BudgetShare final : public Reservation {
 public:
  BudgetShare(BatchingScheduler& scheduler, int64_t bytes) : scheduler_(scheduler), bytes_(bytes) {}
  ~BudgetShare() override { scheduler_.ReturnReserved(bytes_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  BatchingScheduler& scheduler_;
  const int64_t bytes_;
};

absl::StatusOr<std::unique_ptr<Reservation>> BatchingScheduler::Reserve(int64_t bytes,
                                                                        int64_t largest_job_bytes) {
  Job any;
  any.reserved = true;
  {
    std::lock_guard lock(mutex_);
    if (absl::Status status = Admit(any, largest_job_bytes, clock_.Now()); !status.ok()) {
      return status;
    }
    if (absl::Status status = AdmitBytes(bytes); !status.ok()) {
      return status;
    }
    in_flight_bytes_ += bytes;
    PublishLoad();
  }
  return std::make_unique<BudgetShare>(*this, bytes);
}

void BatchingScheduler::ReturnReserved(int64_t bytes) {
  std::lock_guard lock(mutex_);
  in_flight_bytes_ -= bytes;
  PublishLoad();
}

absl::Status BatchingScheduler::AdmitBytes(int64_t bytes) {
  if (bytes <= options_.max_in_flight_bytes - in_flight_bytes_) {
    return absl::OkStatus();
  }
  return Refuse(RejectReason::kByteBudget,
                absl::StrCat("requests in flight take ", in_flight_bytes_, " bytes and this one ",
                             bytes, ", the limit is ", options_.max_in_flight_bytes),
                service_.RetryAfter(queue_.size(), total_slots_));
}

}  // namespace norm::server
