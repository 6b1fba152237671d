#include "server/transport/middleware/access.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/strip.h"

namespace norm::server {
namespace {

/// A path may fill the 8 KiB that gRPC takes of headers.
constexpr size_t kRecordedMethod = 200;

}  // namespace

absl::Status AccessControl::Check(absl::string_view path, const Caller& caller,
                                  const IdentityHeaders& headers) {
  absl::Status status = security_.Check(path, caller);
  if (status.ok()) return status;
  metrics_.RecordRejected(status.code() == absl::StatusCode::kUnauthenticated
                              ? RejectReason::kUnauthenticated
                              : RejectReason::kPermissionDenied);
  const std::optional<int64_t> held_back = failures_.Admit(status.code());
  // A span for each line and no more: who is refused could fill a disk.
  if (!held_back.has_value()) return status;
  const absl::Time now = clock_.Now();
  const CallIdentity identity = Identify(headers, spans_);
  const absl::string_view method = absl::StripPrefix(path, "/");
  metrics_.RecordError(now, path, status);
  failures_.Write("call refused", method, status, identity, std::nullopt, *held_back);
  if (!identity.sampled) return status;
  auto span = std::make_unique<SpanRecord>();
  span->context = identity.span;
  if (identity.parent.has_value()) span->parent_id = identity.parent->span_id;
  span->method = std::string(method.substr(0, kRecordedMethod));
  span->request_id = identity.request_id;
  span->start = span->end = now;
  span->status = status;
  spans_->Record(std::move(span));
  return status;
}

}  // namespace norm::server
