#include "server/scheduler/service_estimate.h"

#include <algorithm>

namespace norm::server {
namespace {

constexpr absl::Duration kMinRetryAfter = absl::Milliseconds(1);
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(10);
// Weight of the newest batch; larger at first, so that the means are those of what was seen.
constexpr double kWeight = 0.05;

}  // namespace

void ServiceEstimate::AddBatch(absl::Duration service, int64_t cost) {
  batches_ = std::min(batches_ + 1, 1 << 20);
  const double weight = std::max(kWeight, 1.0 / batches_);
  const double y = std::max(0.0, absl::ToDoubleSeconds(service));
  const auto x = static_cast<double>(cost);
  service_ += weight * (y - service_);
  cost_ += weight * (x - cost_);
  cost_squared_ += weight * (x * x - cost_squared_);
  cost_service_ += weight * (x * y - cost_service_);
}

absl::Duration ServiceEstimate::Service(double launches, double cost) const {
  const double variance = cost_squared_ - cost_ * cost_;
  // Below this the costs are equal but for rounding, and the line has no slope.
  double slope = variance > 1e-6 * cost_squared_
                     ? std::max(0.0, (cost_service_ - cost_ * service_) / variance)
                     : 0.0;
  double base = service_ - slope * cost_;
  if (base < 0.0) {  // then through the origin
    slope = cost_service_ / cost_squared_;
    base = 0.0;
  }
  return absl::Seconds(launches * base + cost * slope);
}

absl::Duration ServiceEstimate::Share(int64_t cost, int slots) const {
  if (cost_ <= 0.0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(cost) * service_ / cost_) / std::max(1, slots);
}

absl::Duration ServiceEstimate::RetryAfter(int64_t launches, int64_t cost, int slots) const {
  const absl::Duration running = Service(1.0, cost_);
  const absl::Duration queued =
      Service(static_cast<double>(launches), static_cast<double>(cost)) / std::max(1, slots);
  return std::clamp(running + queued, kMinRetryAfter, kMaxRetryAfter);
}

}  // namespace norm::server
