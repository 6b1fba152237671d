// stdin, stdout and stderr of a process whose parent may have closed or filled them.
#pragma once

#include "client/normctl/exit_code.h"

namespace norm::normctl {

/// Gives closed standard streams a descriptor, so that no file or connection opened later becomes
/// one of them; a closed stdout still refuses writes. A reader of stdout that left is an error of
/// the write, not a signal. Called first in main.
void PrepareStandardStreams();

/// Writes out what stdout holds. A failure is one line on stderr and kFailure where `result` was
/// kSuccess.
ExitCode FinishStdout(ExitCode result);

}  // namespace norm::normctl
