#include "server/transport/health.h"

namespace norm::server {
namespace {

constexpr char kServiceName[] = "norm.v1.NormalizationService";

}  // namespace

Health::Health(grpc::HealthCheckServiceInterface* service, Metrics& metrics)
    : service_(service), metrics_(metrics) {
  const std::lock_guard lock(mutex_);
  Publish();
}

void Health::SetHealthy(bool healthy) {
  const std::lock_guard lock(mutex_);
  if (healthy_ == healthy) return;
  healthy_ = healthy;
  Publish();
}

void Health::SetDraining() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  metrics_.SetDraining(true);
  Publish();
}

void Health::Publish() {
  const bool serving = healthy_ && !draining_;
  service_->SetServingStatus("", serving);
  service_->SetServingStatus(kServiceName, serving);
  metrics_.SetReady(serving);
}

}  // namespace norm::server
