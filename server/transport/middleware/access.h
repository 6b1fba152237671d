// Refuses calls by who makes them: the one policy for every service of the port.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/observability/log_limiter.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/scheduler/clock.h"
#include "server/security/security.h"

namespace norm::server {

/// Applied by ListeningCredentials when the headers of a call have come: before a handler sees it, and
/// before the server takes the bytes of its message.
///
/// Threads:  safe.
class AccessControl {
 public:
  /// Borrows all of them.
  AccessControl(const Security& security, Metrics& metrics, const Clock& clock, const Logger& log)
      : security_(security), metrics_(metrics), clock_(clock), log_(log) {}

  const Security& security() const { return security_; }

  /// `path`: "/package.Service/Method". Refusals are counted, and logged once a second at most.
  /// Errors: those of AccessLists::Check.
  absl::Status Check(absl::string_view path, const Caller& caller);

 private:
  const Security& security_;
  Metrics& metrics_;
  const Clock& clock_;
  const Logger& log_;
  LogLimiter limiter_{absl::Seconds(1)};
};

}  // namespace norm::server
