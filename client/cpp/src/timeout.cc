#include "timeout.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace norm::client {

absl::StatusOr<absl::Time> DeadlineAfter(absl::Duration timeout) {
  // Past a year a deadline is an accident, and gRPC's clock arithmetic is not made for it.
  if (timeout <= absl::ZeroDuration() || timeout > absl::Hours(24 * 365)) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout ", absl::FormatDuration(timeout), " is outside (0, 1 year]"));
  }
  return absl::Now() + timeout;
}

}  // namespace norm::client
