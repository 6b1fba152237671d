#include "server/transport/middleware/admission.h"

#include "absl/strings/str_cat.h"

namespace norm::server {

absl::Time ToDeadline(std::chrono::system_clock::time_point deadline) {
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::Status Admit(const ServingContext& context, absl::Time deadline, absl::Time now) {
  if (context.calls.stopping()) {
    context.metrics.RecordRejected(RejectReason::kDraining);
    return absl::UnavailableError("the server is shutting down");
  }
  if (deadline <= now) {
    context.metrics.RecordDeadlineExceeded(Stage::kDecode);
    return absl::DeadlineExceededError(
        absl::StrCat("deadline passed ", absl::FormatDuration(now - deadline), " before arrival"));
  }
  return absl::OkStatus();
}

}  // namespace norm::server
