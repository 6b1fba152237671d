#include "server/transport/middleware/failure_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/tracing/trace_context.h"

namespace norm::server {
namespace {

/// A path may fill the 8 KiB that gRPC takes of headers, and messages quote what clients sent.
constexpr size_t kLoggedMethod = 200;
constexpr size_t kLoggedReason = 500;

LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return LogLevel::kError;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return LogLevel::kWarning;
    default:
      return LogLevel::kInfo;
  }
}

}  // namespace

std::optional<int64_t> FailureLog::Admit(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return limiters_[index < kCodes ? index : 0].Admit(clock_.Now());
}

void FailureLog::Write(absl::string_view message, absl::string_view method,
                       const absl::Status& status, const CallIdentity& identity,
                       std::optional<uint64_t> stream_request, int64_t held_back) const {
  std::vector<Logger::Field> fields = {
      {"method", std::string(method.substr(0, kLoggedMethod))},
      {"code", absl::StatusCodeToString(status.code())},
      {"reason", std::string(status.message().substr(0, kLoggedReason))},
      {"request_id", identity.request_id}};
  if (stream_request.has_value()) {
    fields.emplace_back("stream_request", absl::StrCat(*stream_request));
  }
  if (const tracing::TraceContext* span = identity.logged_span(); span != nullptr) {
    fields.emplace_back("trace_id", tracing::TraceIdText(*span));
    fields.emplace_back("span_id", tracing::SpanIdText(span->span_id));
  }
  fields.emplace_back("held_back", absl::StrCat(held_back));
  log_.Write(LevelOf(status.code()), message, fields);
}

}  // namespace norm::server
