// What a load is doing right now, for a line on the terminal.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace norm::normctl {

/// Threads: any; Describe from one.
class LoadProgress {
 public:
  /// A phase begins: `label` says what is sent.
  void Begin(std::string label, absl::Duration warm_up, absl::Duration duration);
  /// A request has ended.
  void Count(bool ok) { (ok ? completed_ : failed_).fetch_add(1, std::memory_order_relaxed); }
  /// "echo: warm-up 0.4 of 1.0 s, 1234 requests/s, 0 errors"; the rate since the call before.
  std::string Describe(absl::Time now);

 private:
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> failed_{0};

  std::mutex mutex_;
  std::string label_ ABSL_GUARDED_BY(mutex_) = "connecting";
  absl::Time begun_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // no phase yet
  absl::Duration warm_up_ ABSL_GUARDED_BY(mutex_);
  absl::Duration duration_ ABSL_GUARDED_BY(mutex_);

  // Of the last description.
  int64_t described_completed_ = 0;
  absl::Time described_at_ = absl::InfinitePast();
};

}  // namespace norm::normctl
