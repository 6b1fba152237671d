#include "server/transport/middleware/call_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/tracing/request_id.h"
#include "server/transport/middleware/failure_log.h"

namespace norm::server {
namespace {

constexpr size_t kRecordedAuthority = 1024;

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

bool Sent(const char* key, const grpc::ServerContext& call) {
  return call.client_metadata().count(key) > 0;
}

IdentityHeaders HeadersOf(const grpc::ServerContext& call) {
  IdentityHeaders headers;
  for (const auto& [key, value] : call.client_metadata()) headers.Add(View(key), View(value));
  return headers;
}

}  // namespace

const CallIdentity& CallTrace::Identity() {
  if (!identity_.has_value()) identity_ = Identify(HeadersOf(call_), context_.spans);
  return *identity_;
}

absl::string_view CallTrace::name() const {
  const absl::string_view method = method_;
  return method.substr(method.find('/') + 1);
}

void CallTrace::Sample() {
  if (context_.spans->begins_traces() || Sent(tracing::kTraceparent, call_)) (void)Identity();
}

void CallTrace::Answer(const absl::Status& status) {
  const bool failed = !status.ok() && (!absl::IsUnavailable(status) || logged_.load());
  const bool sampled = identity_.has_value() && identity_->sampled;
  if (!failed && !sampled && !Sent(tracing::kRequestId, call_)) return;
  call_.AddTrailingMetadata(tracing::kRequestId, Identity().request_id);
}

void CallTrace::AnswerStream() {
  call_.AddInitialMetadata(tracing::kRequestId, Identity().request_id);
}

std::unique_ptr<SpanRecord> CallTrace::NewSpan(absl::Time start) const {
  if (!identity_.has_value() || !identity_->sampled) return nullptr;
  auto span = std::make_unique<SpanRecord>();
  span->context = identity_->span;
  span->request_id = identity_->request_id;
  span->start = start;
  return span;
}

std::unique_ptr<SpanRecord> CallTrace::NewCallSpan(absl::Time start) const {
  std::unique_ptr<SpanRecord> span = NewSpan(start);
  if (span == nullptr) return nullptr;
  if (identity_->parent.has_value()) span->parent_id = identity_->parent->span_id;
  span->method = method_;
  span->peer = call_.peer();
  // The caller's, and as long as headers may be.
  span->authority =
      std::string(View(call_.ExperimentalGetAuthority()).substr(0, kRecordedAuthority));
  return span;
}

std::unique_ptr<SpanRecord> CallTrace::NewRequestSpan(uint64_t stream_request,
                                                      absl::Time start) const {
  std::unique_ptr<SpanRecord> span = NewSpan(start);
  if (span == nullptr) return nullptr;
  span->is_call = false;
  span->parent_id = span->context.span_id;
  span->context.span_id = tracing::NewId();
  span->stream_request = stream_request;
  return span;
}

void CallTrace::Record(std::unique_ptr<SpanRecord> span, absl::Time end, bool sent) const {
  if (span == nullptr) return;
  span->end = end;
  if (!sent && span->status.ok()) span->status = absl::CancelledError("the client has gone");
  context_.spans->Record(std::move(span));
}

void CallTrace::LogFailure(const absl::Status& status, std::optional<uint64_t> stream_request) {
  const std::optional<int64_t> held_back = context_.failures.Admit(status.code());
  if (!held_back.has_value()) return;
  logged_ = true;
  context_.failures.Write("call failed", method_, status, Identity(), stream_request, *held_back);
}

void AnswerGivenRequestId(grpc::ServerContext& call) {
  if (!Sent(tracing::kRequestId, call)) return;
  const CallIdentity identity = Identify(HeadersOf(call), nullptr);
  if (identity.request_id_given) call.AddTrailingMetadata(tracing::kRequestId, identity.request_id);
}

}  // namespace norm::server
