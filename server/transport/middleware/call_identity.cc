#include "server/transport/middleware/call_identity.h"

#include "proto/tracing/request_id.h"

namespace norm::server {

void IdentityHeaders::Add(absl::string_view key, absl::string_view value) {
  if (key == tracing::kRequestId) request_ids.push_back(value);
  if (key == tracing::kTraceparent) traceparents.push_back(value);
  if (key == tracing::kTracestate) tracestates.push_back(value);
}

CallIdentity Identify(const IdentityHeaders& headers, const SpanLog* spans) {
  CallIdentity identity;
  identity.parent = tracing::ParseTraceContext(headers.traceparents, headers.tracestates);
  identity.span = tracing::NewTrace();
  if (identity.parent.has_value()) {
    const uint64_t span_id = identity.span.span_id;
    identity.span = *identity.parent;
    identity.span.span_id = span_id;
  }
  identity.sampled = spans != nullptr && spans->Samples(identity.parent, identity.span);
  identity.span.sampled = identity.sampled;
  identity.request_id_given =
      headers.request_ids.size() == 1 && tracing::IsRequestId(headers.request_ids.front());
  identity.request_id = identity.request_id_given ? std::string(headers.request_ids.front())
                                                  : tracing::SpanIdText(identity.span.span_id);
  return identity;
}

}  // namespace norm::server
