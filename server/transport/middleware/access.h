// Refuses calls by who makes them: the one policy for every service of the port.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/observability/metrics.h"
#include "server/observability/span_log.h"
#include "server/scheduler/clock.h"
#include "server/security/security.h"
#include "server/transport/middleware/call_identity.h"
#include "server/transport/middleware/failure_log.h"

namespace norm::server {

/// Applied by ListeningCredentials when the headers of a call have come: before a handler sees it, and
/// before the server takes the bytes of its message.
///
/// Threads:  safe.
class AccessControl {
 public:
  /// Borrows all of them; `spans` may be null.
  AccessControl(const Security& security, Metrics& metrics, const Clock& clock,
                FailureLog& failures, SpanLog* spans)
      : security_(security), metrics_(metrics), clock_(clock), failures_(failures), spans_(spans) {}

  const Security& security() const { return security_; }

  /// `path`: "/package.Service/Method". Refusals are counted and logged once a second at most; one that
  /// is logged leaves a span where the caller's trace is sampled. gRPC 1.51 sends no metadata with them.
  /// Errors: those of AccessLists::Check.
  absl::Status Check(absl::string_view path, const Caller& caller, const IdentityHeaders& headers);

 private:
  const Security& security_;
  Metrics& metrics_;
  const Clock& clock_;
  FailureLog& failures_;
  SpanLog* const spans_;
};

}  // namespace norm::server
