// Responses that gRPC holds until their readers take them: bounded in bytes and in time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/observability/metrics.h"
#include "server/scheduler/clock.h"

namespace norm::server {

struct UnsentLimits {
  /// Of all connections together, in bytes. Beyond it, those that have their equal part of it
  /// unsent get no more requests in.
  int64_t max_bytes = 0;
  /// A write that takes longer ends its call.
  absl::Duration write_timeout;
};

/// Counts the bytes of finished responses from their completion until gRPC has written them, by
/// flow, and cancels calls whose reader does not take one. Results stay in staging memory until
/// then, so one connection that never reads could otherwise take it from all.
///
/// Ownership:  borrows metrics and clock. Outlives every OfCall.
/// Threads:    safe. A thread of its own looks for late writes, four times in write_timeout and once
///             a second at least.
class UnsentResponses {
 public:
  UnsentResponses(const UnsentLimits& limits, Metrics& metrics, const Clock& clock);
  ~UnsentResponses();
  UnsentResponses(const UnsentResponses&) = delete;
  UnsentResponses& operator=(const UnsentResponses&) = delete;

  /// UNAVAILABLE when the limit is reached and this flow has its part of it.
  absl::Status Check(uint64_t flow) const ABSL_LOCKS_EXCLUDED(mutex_);

  /// The responses of one call, at most one of them being written. Not thread-safe; the call orders
  /// its use. What it still holds is given back with it.
  class OfCall {
   public:
    /// Borrows both; the call is cancelled through `context`.
    OfCall(UnsentResponses& all, grpc::ServerContext& context);
    ~OfCall();
    OfCall(const OfCall&) = delete;
    OfCall& operator=(const OfCall&) = delete;

    /// Before anything else.
    void SetFlow(uint64_t flow) { flow_ = flow; }
    /// A finished response that is not written yet.
    void Hold(int64_t bytes);
    /// Held responses that nobody will write.
    void Drop(int64_t bytes);
    /// The write of a response begins: of a new one, or of one held before.
    void StartWrite(int64_t bytes);
    void StartHeldWrite(int64_t bytes);
    /// It has ended, in whatever way; nothing happens when none was.
    void EndWrite();

   private:
    friend class UnsentResponses;
    struct Write {
      absl::Time deadline;
      grpc::ServerContext* context;
      bool cancelled = false;
    };

    void BeginWrite(int64_t bytes);

    UnsentResponses& all_;
    uint64_t flow_ = 0;
    int64_t held_bytes_ = 0;
    int64_t writing_bytes_ = 0;
    bool writing_ = false;
    std::list<Write> write_;  // its one node, while it is not in `all_.writes_`
    std::list<Write>::iterator node_;
  };

 private:
  void Add(uint64_t flow, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  const UnsentLimits limits_;
  Metrics& metrics_;
  const Clock& clock_;
  std::atomic<int64_t> total_bytes_{0};  // changed under the mutex
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, int64_t> flow_bytes_ ABSL_GUARDED_BY(mutex_);  // none with zero
  std::list<OfCall::Write> writes_ ABSL_GUARDED_BY(mutex_);                    // oldest first
  std::condition_variable stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace norm::server
