// Timeouts of calls as deadlines.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace norm::client {

/// Errors: INVALID_ARGUMENT unless `timeout` is positive and finite.
absl::StatusOr<absl::Time> DeadlineAfter(absl::Duration timeout);

}  // namespace norm::client
