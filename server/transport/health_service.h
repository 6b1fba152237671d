// grpc.health.v1 on the queues and threads of the data path.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/transport/call.h"
#include "server/transport/queue_inbox.h"

namespace norm::server {

/// gRPC 1.51 would serve it by its callback interface, whose threads, half as many as cores, poll the
/// same sockets as those of the queues: what one of them reads, it hands over.
///
/// Ownership:  borrows `calls`; outlives every call and the grpc::Server.
/// Threads:    safe.
class HealthService final : public grpc::HealthCheckServiceInterface {
 public:
  explicit HealthService(LiveCalls& calls) : calls_(calls) {}

  /// To be registered with the server.
  grpc::Service& service() { return service_; }
  /// Waits for one Check and one Watch on `queue`; a call that arrives arms its successor.
  void Arm(grpc::ServerCompletionQueue& queue, QueueInbox& inbox);

  /// Names a service with its first status.
  void SetServingStatus(const std::string& name, bool serving) override ABSL_LOCKS_EXCLUDED(mutex_);
  void SetServingStatus(bool serving) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class CheckCall;
  class WatchCall;

  /// Absent: not named yet.
  std::optional<bool> Serving(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddWatcher(WatchCall* watcher) ABSL_LOCKS_EXCLUDED(mutex_);
  /// On return no change is told to it any more.
  void RemoveWatcher(WatchCall* watcher) ABSL_LOCKS_EXCLUDED(mutex_);
  void TellWatchers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LiveCalls& calls_;
  grpc::health::v1::Health::AsyncService service_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<WatchCall*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::server
