#include "server/scheduler/scheduler.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

// The payload is the duration in nanoseconds, in decimal.
constexpr char kRetryAfterPayload[] = "norm.retry-after";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, absl::Duration retry_after) {
  status.SetPayload(kRetryAfterPayload,
                    absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(retry_after))));
  return status;
}

absl::Duration RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfterPayload);
  int64_t nanoseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &nanoseconds)) {
    return absl::ZeroDuration();
  }
  return absl::Nanoseconds(nanoseconds);
}

}  // namespace norm::server
