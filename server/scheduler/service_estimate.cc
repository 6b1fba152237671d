#include "server/scheduler/service_estimate.h"

#include <algorithm>

namespace norm::server {
namespace {

constexpr absl::Duration kMinRetryAfter = absl::Milliseconds(1);
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(10);
// Weight of the newest batch.
constexpr double kWeight = 0.1;

}  // namespace

void ServiceEstimate::AddBatch(absl::Duration service, int64_t jobs) {
  mean_service_ = mean_service_ == absl::ZeroDuration()
                      ? service
                      : mean_service_ + kWeight * (service - mean_service_);
  mean_jobs_ += kWeight * (static_cast<double>(jobs) - mean_jobs_);
}

absl::Duration ServiceEstimate::RetryAfter(int64_t queued_jobs, int slots) const {
  const double batches = static_cast<double>(queued_jobs) / std::max(1.0, mean_jobs_);
  return std::clamp(mean_service_ * (1.0 + batches / std::max(1, slots)), kMinRetryAfter,
                    kMaxRetryAfter);
}

}  // namespace norm::server
