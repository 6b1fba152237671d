#include "server/transport/health_service.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/async_unary_call.h"

namespace norm::server {
namespace {

/// Of a name that is not known: a long one would not fit into the answer's metadata.
constexpr size_t kQuotedService = 200;

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

/// Of all health calls: they are rare and small.
constexpr uint64_t kFlow = 0;

HealthCheckResponse::ServingStatus ToStatus(std::optional<bool> serving) {
  if (!serving.has_value()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return *serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace

class HealthService::CheckCall final : public Call {
 public:
  static constexpr uint64_t flow() { return kFlow; }

  static void Arm(HealthService& health, grpc::ServerCompletionQueue& queue) {
    auto* call = new CheckCall(health, queue);
    health.service_.RequestCheck(&call->server_context_, &call->request_, &call->responder_, &queue,
                                 &queue, call->arrived_.Tag());
  }

 private:
  CheckCall(HealthService& health, grpc::ServerCompletionQueue& queue)
      : Call(health.calls_), health_(health), queue_(queue) {}

  void OnArrived(bool ok) {
    if (!ok) return;
    Begin();
    Arm(health_, queue_);
    const std::optional<bool> serving = health_.Serving(request_.service());
    if (!serving.has_value()) {
      responder_.FinishWithError(
          {grpc::StatusCode::NOT_FOUND,
           absl::StrCat("service: '",
                        absl::string_view(request_.service()).substr(0, kQuotedService),
                        "' is none of this server's")},
          finished_.Tag());
      return;
    }
    HealthCheckResponse response;
    response.set_status(ToStatus(serving));
    responder_.Finish(response, grpc::Status::OK, finished_.Tag());
  }

  void OnFinished(bool) {}

  HealthService& health_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext server_context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncResponseWriter<HealthCheckResponse> responder_{&server_context_};
  CallEvent<CheckCall> arrived_{this, &CheckCall::OnArrived};
  CallEvent<CheckCall> finished_{this, &CheckCall::OnFinished};
};

/// Ends when its caller leaves or the server shuts down, which drain does not wait for: it is never
/// in progress. Its events may come on several threads at once.
class HealthService::WatchCall final : public Call {
 public:
  static constexpr uint64_t flow() { return kFlow; }

  static void Arm(HealthService& health, grpc::ServerCompletionQueue& queue, QueueInbox& inbox) {
    auto* call = new WatchCall(health, queue, inbox);
    call->server_context_.AsyncNotifyWhenDone(call->done_.Tag());
    health.service_.RequestWatch(&call->server_context_, &call->request_, &call->stream_, &queue,
                                 &queue, call->arrived_.Tag());
  }

  /// A status may have changed. Until RemoveWatcher.
  void Tell() { inbox_.Post(changed_.Event()); }

 private:
  WatchCall(HealthService& health, grpc::ServerCompletionQueue& queue, QueueInbox& inbox)
      : Call(health.calls_), health_(health), queue_(queue), inbox_(inbox) {}

  void OnArrived(bool ok) {
    if (!ok) {
      // Shutting down before a call came: gRPC does not return the done tag then.
      done_.Drop();
      return;
    }
    Arm(health_, queue_, inbox_);
    const std::lock_guard lock(mutex_);
    if (!done_with_) health_.AddWatcher(this);
    Advance();
  }

  void OnChanged(bool) {
    const std::lock_guard lock(mutex_);
    Advance();
  }

  void OnWritten(bool ok) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) Advance();  // otherwise OnDone comes
  }

  /// The caller has left, or the server shuts down.
  void OnDone(bool) {
    const std::lock_guard lock(mutex_);
    done_with_ = true;
    health_.RemoveWatcher(this);
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || done_with_) return;
    const HealthCheckResponse::ServingStatus status = ToStatus(health_.Serving(request_.service()));
    if (sent_ == status) return;
    sent_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    writing_ = true;
    stream_.Write(response, written_.Tag());
  }

  HealthService& health_;
  grpc::ServerCompletionQueue& queue_;
  QueueInbox& inbox_;
  grpc::ServerContext server_context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> stream_{&server_context_};
  CallEvent<WatchCall> arrived_{this, &WatchCall::OnArrived};
  CallEvent<WatchCall> changed_{this, &WatchCall::OnChanged};
  CallEvent<WatchCall> written_{this, &WatchCall::OnWritten};
  CallEvent<WatchCall> done_{this, &WatchCall::OnDone};

  std::mutex mutex_;  // before HealthService's
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_with_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<HealthCheckResponse::ServingStatus> sent_ ABSL_GUARDED_BY(mutex_);
};

void HealthService::Arm(grpc::ServerCompletionQueue& queue, QueueInbox& inbox) {
  CheckCall::Arm(*this, queue);
  WatchCall::Arm(*this, queue, inbox);
}

void HealthService::SetServingStatus(const std::string& name, bool serving) {
  const std::lock_guard lock(mutex_);
  serving_.insert_or_assign(name, serving);
  TellWatchers();
}

void HealthService::SetServingStatus(bool serving) {
  const std::lock_guard lock(mutex_);
  for (auto& [name, status] : serving_) status = serving;
  TellWatchers();
}

std::optional<bool> HealthService::Serving(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = serving_.find(name);
  return found == serving_.end() ? std::nullopt : std::optional(found->second);
}

void HealthService::AddWatcher(WatchCall* watcher) {
  const std::lock_guard lock(mutex_);
  watchers_.insert(watcher);
}

void HealthService::RemoveWatcher(WatchCall* watcher) {
  const std::lock_guard lock(mutex_);
  watchers_.erase(watcher);
}

void HealthService::TellWatchers() {
  for (WatchCall* watcher : watchers_) watcher->Tell();
}

}  // namespace norm::server
