#include "server/transport/health.h"

namespace norm::server {
namespace {

constexpr const char* kServices[] = {"", "norm.v1.NormalizationService", "norm.v1.ServerService",
                                     "norm.v1.EchoService"};
constexpr char kLiveness[] = "liveness";

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
  ServingState state = draining_ ? ServingState::kDraining : ServingState::kServing;
  if (!healthy_.has_value()) {
    state = ServingState::kStarting;
  } else if (!*healthy_) {
    state = ServingState::kNoDevice;
  }
  for (const char* const service : kServices) service_->SetServingStatus(service, IsReady(state));
  service_->SetServingStatus(kLiveness, IsLive(state));
  metrics_.SetServingState(state);
}

}  // namespace norm::server
