#include "call_metadata.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "norm/client/client.h"
#include "proto/tracing/request_id.h"
#include "proto/tracing/trace_context.h"

namespace norm::client {
namespace {

constexpr absl::string_view kRequestIdPayload = "normd.client/request-id";

bool IsTraceparent(const std::string& text) { return tracing::ParseTraceparent(text).has_value(); }

}  // namespace

CallMetadata ToMetadata(const CallIdentity& identity) {
  CallMetadata metadata;
  if (tracing::IsRequestId(identity.request_id)) {
    metadata.emplace(tracing::kRequestId, identity.request_id);
  }
  if (!IsTraceparent(identity.traceparent)) return metadata;
  metadata.emplace(tracing::kTraceparent, identity.traceparent);
  std::string tracestate = tracing::CombineTracestate({identity.tracestate});
  if (!tracestate.empty()) metadata.emplace(tracing::kTracestate, std::move(tracestate));
  return metadata;
}

void AddTo(grpc::ClientContext& context, const CallMetadata& metadata) {
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
}

std::string RequestIdOf(const std::multimap<grpc::string_ref, grpc::string_ref>& server,
                        const CallMetadata& sent) {
  const auto found = server.find(tracing::kRequestId);
  if (found != server.end()) {
    const absl::string_view id(found->second.data(), found->second.size());
    if (tracing::IsRequestId(id)) return std::string(id);
  }
  const auto own = sent.find(tracing::kRequestId);
  return own == sent.end() ? "" : own->second;
}

absl::Status WithRequestId(absl::Status status, const std::string& request_id) {
  if (!status.ok() && !request_id.empty()) {
    status.SetPayload(kRequestIdPayload, absl::Cord(request_id));
  }
  return status;
}

std::string RequestId(const absl::Status& status) {
  const absl::optional<absl::Cord> id = status.GetPayload(kRequestIdPayload);
  return id.has_value() ? std::string(*id) : "";
}

std::string NewRequestId() { return tracing::SpanIdText(tracing::NewId()); }

absl::Status CheckIdentity(const CallIdentity& identity) {
  if (!identity.traceparent.empty() && !IsTraceparent(identity.traceparent)) {
    return absl::InvalidArgumentError(
        absl::StrCat("traceparent '", identity.traceparent,
                     "' is no W3C trace context, such as "
                     "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
  }
  if (!identity.tracestate.empty() && tracing::CombineTracestate({identity.tracestate}).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tracestate '", identity.tracestate, "' is no list of key=value"));
  }
  if (!identity.request_id.empty() && !tracing::IsRequestId(identity.request_id)) {
    return absl::InvalidArgumentError(absl::StrCat("request_id '", identity.request_id,
                                                   "' is not 1 to 128 visible ASCII characters"));
  }
  return absl::OkStatus();
}

}  // namespace norm::client
