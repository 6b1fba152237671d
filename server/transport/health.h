// The standard health service, following device health and draining.
#pragma once

#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// SERVING for "" and each service of norm.v1 while healthy and not draining; for "liveness" while
/// healthy, draining or not, so that a supervisor does not restart what is finishing its work.
/// Starts NOT_SERVING. The metrics' serving state is the same value.
///
/// Threads:  safe.
class Health {
 public:
  /// Borrows both.
  Health(grpc::HealthCheckServiceInterface* service, Metrics& metrics);

  void SetHealthy(bool healthy) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetDraining() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::HealthCheckServiceInterface* const service_;
  Metrics& metrics_;
  std::mutex mutex_;
  std::optional<bool> healthy_ ABSL_GUARDED_BY(mutex_);  // empty until it is told
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace norm::server
