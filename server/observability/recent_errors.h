// The last calls that failed, for a person who looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace norm::server {

struct RecentError {
  absl::Time time;  // of the first
  std::string method;
  absl::StatusCode code;
  std::string message;  // of the first
  int64_t count = 1;    // of the same method and code within a second
};

/// The last kKept of them. A burst of one kind takes one place a second, so that it does not wash
/// everything else away. Takes a lock: for failed calls alone.
///
/// Threads:  safe.
class RecentErrors {
 public:
  static constexpr size_t kKept = 50;
  static constexpr size_t kMessageBytes = 500;  // longer ones are cut, and end in "..."
  static constexpr size_t kMethodBytes = 200;

  void Add(absl::Time now, absl::string_view method, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// The newest first.
  std::vector<RecentError> List() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable std::mutex mutex_;
  std::deque<RecentError> errors_ ABSL_GUARDED_BY(mutex_);  // the newest last
};

}  // namespace norm::server
