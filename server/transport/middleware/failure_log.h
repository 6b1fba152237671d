// Log lines of calls that did not end in OK.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/observability/log_limiter.h"
#include "server/observability/logging.h"
#include "server/scheduler/clock.h"
#include "server/transport/middleware/call_identity.h"

namespace norm::server {

/// One line of each status code in a second, with how many were held back before it: a caller
/// cannot fill the log, and no code hides another. What the server has to answer for is an error, what overload and
/// limits cost a warning, the rest information.
///
/// Threads:  safe.
class FailureLog {
 public:
  /// Borrows both.
  FailureLog(const Logger& log, const Clock& clock) : log_(log), clock_(clock) {}

  /// Before a line with `code`: how many were held back since the last one, or nothing when this one
  /// is held back too.
  std::optional<int64_t> Admit(absl::StatusCode code);

  /// Writes it. `method` may be the caller's, of any length.
  void Write(absl::string_view message, absl::string_view method, const absl::Status& status,
             const CallIdentity& identity, std::optional<uint64_t> stream_request,
             int64_t held_back) const;

 private:
  static constexpr size_t kCodes = 17;  // of gRPC; OK and unknown ones share the first

  const Logger& log_;
  const Clock& clock_;
  std::array<LogLimiter, kCodes> limiters_;
};

}  // namespace norm::server
