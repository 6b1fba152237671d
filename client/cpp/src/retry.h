// The decision whether and when a failed call is tried again, apart from the network and the clock.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "norm/client/options.h"

namespace norm::client {

/// Time as retries see it.
class RetryClock {
 public:
  virtual ~RetryClock() = default;
  virtual absl::Time Now() = 0;
  virtual void SleepFor(absl::Duration duration) = 0;
  /// Uniform in [0, 1): the source of jitter.
  virtual double Random() = 0;
};

/// The machine's clock.
class SystemRetryClock : public RetryClock {
 public:
  absl::Time Now() override;
  void SleepFor(absl::Duration duration) override;
  double Random() override;
};

/// How one try ended.
struct AttemptOutcome {
  absl::Status status;
  // grpc-retry-pushback-ms of the server; negative forbids another try.
  std::optional<absl::Duration> pushback;
};

absl::Status Validate(const RetryPolicy& policy);

/// Calls `attempt` until it does not end in UNAVAILABLE or the policy, the pushback or the deadline
/// forbids another try; returns the last status.
absl::Status RunWithRetries(const RetryPolicy& policy, absl::Time deadline, RetryClock& clock,
                            const std::function<AttemptOutcome()>& attempt);

}  // namespace norm::client
