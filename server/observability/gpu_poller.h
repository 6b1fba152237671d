// Readings of a card from who may take long to give them, or hang: the driver.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Asks for readings on a thread of its own and keeps the last for others, who never wait for it.
///
/// A call into a driver cannot be broken off. So the thread stays joined by its owner, and the owner
/// is told in bounded time when that would wait: whoever ends the process then ends it without
/// destroying this object (server/main.cc), since a thread left behind in the driver would go on in
/// memory that is being taken down.
///
/// Threads:  safe.
class GpuPoller {
 public:
  struct Last {
    GpuReading reading;  // empty before the first answer
    absl::Duration age;  // since the answer; before the first one, since asking began
  };

  /// Calls `read` at once and `interval` after each return. `uuid`: of the card.
  GpuPoller(std::string uuid, std::function<GpuReading()> read, absl::Duration interval);
  /// Waits for a `read` that has not returned.
  ~GpuPoller();
  GpuPoller(const GpuPoller&) = delete;
  GpuPoller& operator=(const GpuPoller&) = delete;

  const std::string& uuid() const { return uuid_; }
  Last last() const ABSL_LOCKS_EXCLUDED(mutex_);

  /// No `read` begins from here on.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  /// After Stop: whether the thread has finished by then, so that the destructor does not wait.
  bool AwaitStopped(std::chrono::steady_clock::time_point end) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Poll() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string uuid_;
  const std::function<GpuReading()> read_;
  const std::chrono::nanoseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  GpuReading reading_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point read_at_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace norm::server
