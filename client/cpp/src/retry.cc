#include "retry.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "call_status.h"
#include "norm/client/client.h"
#include "timeout.h"

namespace norm::client {

absl::Time SystemRetryClock::Now() { return absl::Now(); }
void SystemRetryClock::SleepFor(absl::Duration duration) { absl::SleepFor(duration); }

double SystemRetryClock::Random() {
  std::random_device device;
  return std::uniform_real_distribution<double>(0.0, 1.0)(device);
}

absl::Status Validate(const RetryPolicy& policy) {
  if (policy.max_attempts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("retry.max_attempts ", policy.max_attempts, " < 1"));
  }
  if (policy.initial_backoff < absl::ZeroDuration() ||
      policy.max_backoff < policy.initial_backoff) {
    return absl::InvalidArgumentError(absl::StrCat(
        "retry.initial_backoff ", absl::FormatDuration(policy.initial_backoff),
        " must lie between 0 and retry.max_backoff ", absl::FormatDuration(policy.max_backoff)));
  }
  if (!(policy.backoff_multiplier >= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("retry.backoff_multiplier ", policy.backoff_multiplier, " < 1"));
  }
  if (!(policy.jitter >= 0.0 && policy.jitter <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("retry.jitter ", policy.jitter, " is outside [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status RunWithRetries(const RetryPolicy& policy, absl::Time deadline, RetryClock& clock,
                            const std::function<AttemptOutcome()>& attempt) {
  absl::Duration backoff = policy.initial_backoff;
  for (int tries = 1;; ++tries) {
    const AttemptOutcome outcome = attempt();
    if (!absl::IsUnavailable(outcome.status) || tries >= policy.max_attempts) return outcome.status;
    absl::Duration wait;
    if (outcome.pushback.has_value()) {
      if (*outcome.pushback < absl::ZeroDuration()) return outcome.status;
      wait = *outcome.pushback;
    } else {
      wait = backoff * (1.0 - policy.jitter + 2.0 * policy.jitter * clock.Random());
      backoff = std::min(backoff * policy.backoff_multiplier, policy.max_backoff);
    }
    if (clock.Now() + wait >= deadline) return outcome.status;
    clock.SleepFor(wait);
  }
}

absl::Status CallWithRetries(const RetryPolicy& policy, absl::Duration timeout,
                             const std::function<absl::Status(absl::Duration left)>& attempt) {
  if (absl::Status status = Validate(policy); !status.ok()) return status;
  const absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return deadline.status();
  SystemRetryClock clock;
  return RunWithRetries(policy, *deadline, clock, [&] {
    absl::Status status = attempt(std::max(*deadline - clock.Now(), absl::Microseconds(1)));
    std::optional<absl::Duration> pushback = RetryPushback(status);
    return AttemptOutcome{std::move(status), pushback};
  });
}

}  // namespace norm::client
