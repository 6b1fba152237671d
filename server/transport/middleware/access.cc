#include "server/transport/middleware/access.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

/// A path may fill the 8 KiB that gRPC takes of headers.
constexpr size_t kLoggedPath = 200;

}  // namespace

absl::Status AccessControl::Check(absl::string_view path, const Caller& caller) {
  absl::Status status = security_.Check(path, caller);
  if (status.ok()) return status;
  metrics_.RecordRejected(status.code() == absl::StatusCode::kUnauthenticated
                              ? RejectReason::kUnauthenticated
                              : RejectReason::kPermissionDenied);
  const absl::Time now = clock_.Now();
  if (const std::optional<int64_t> held_back = limiter_.Admit(now); held_back.has_value()) {
    metrics_.RecordError(now, path, status);
    log_.Warning("call refused", {{"method", std::string(path.substr(0, kLoggedPath))},
                                  {"code", absl::StatusCodeToString(status.code())},
                                  {"reason", std::string(status.message())},
                                  {"held_back", absl::StrCat(*held_back)}});
  }
  return status;
}

}  // namespace norm::server
