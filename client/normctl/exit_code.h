// What normctl's exit status says, and the one line that goes with it.
#pragma once

#include "absl/status/status.h"

namespace norm::normctl {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,            // the server refused, a file cannot be used, a check failed
  kBadUsage = 2,           // the command line is wrong
  kServerUnreachable = 3,  // no server answered
};

/// Prints "normctl: <code>: <message>", with the request id where a server was asked, as one line on
/// stderr and returns the exit code for it.
ExitCode ReportError(const absl::Status& status);

}  // namespace norm::normctl
