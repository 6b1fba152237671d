// Time as the scheduler sees it; tests drive it by hand.
#pragma once

#include "absl/time/time.h"

namespace norm::server {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic enough for deadlines: the system's wall clock in production, since gRPC deadlines
  /// are wall times.
  virtual absl::Time Now() const = 0;

  /// The process's real clock, never deleted.
  static const Clock& Real();
};

}  // namespace norm::server
