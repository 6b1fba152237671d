// Who a call says it is: its request id and its place in a trace, out of its metadata.
#pragma once

#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "proto/tracing/trace_context.h"
#include "server/observability/span_log.h"

namespace norm::server {

/// What of a call's metadata says it, as it came; a key may have several values.
struct IdentityHeaders {
  absl::InlinedVector<absl::string_view, 1> request_ids;
  absl::InlinedVector<absl::string_view, 1> traceparents;
  absl::InlinedVector<absl::string_view, 1> tracestates;

  /// Keeps the value of a key that counts.
  void Add(absl::string_view key, absl::string_view value);
};

struct CallIdentity {
  // The client's where it sent one and that is sane (tracing::IsRequestId), else made here: the id
  // of `span`.
  std::string request_id;
  bool request_id_given = false;
  std::optional<tracing::TraceContext> parent;  // the span that the client names
  tracing::TraceContext span;                   // of the call itself, in the trace of `parent`
  bool sampled = false;                         // whether that span is recorded

  /// What log lines name: `span`, or where that is not recorded `parent`, which may be none.
  const tracing::TraceContext* logged_span() const {
    return sampled ? &span : parent.has_value() ? &*parent : nullptr;
  }
};

/// Metadata that cannot be used is as if it were not there: a new trace, a new id. `spans` may be
/// null.
CallIdentity Identify(const IdentityHeaders& headers, const SpanLog* spans);

}  // namespace norm::server
