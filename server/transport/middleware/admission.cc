#include "server/transport/middleware/admission.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace norm::server {

absl::Time ToDeadline(std::chrono::system_clock::time_point deadline) {
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

uint64_t FlowOf(const grpc::ServerContext& call) { return absl::HashOf(call.peer()); }

absl::Status Admit(const ServingContext& context, uint64_t flow, absl::Time deadline,
                   absl::Time now) {
  if (context.calls.stopping()) {
    context.metrics.RecordRejected(RejectReason::kDraining);
    return absl::UnavailableError("the server is shutting down");
  }
  if (deadline <= now) {
    context.metrics.RecordDeadlineExceeded(Stage::kDecode);
    return absl::DeadlineExceededError(
        absl::StrCat("deadline passed ", absl::FormatDuration(now - deadline), " before arrival"));
  }
  absl::Status status = context.unsent.Check(flow);
  if (!status.ok()) context.metrics.RecordRejected(RejectReason::kUnsentBytes);
  return status;
}

}  // namespace norm::server
