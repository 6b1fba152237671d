// The end of a process whose driver may hang.
#pragma once

#include "server/observability/logging.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Stops the readers of cards. Returns when `metrics` can be destroyed without waiting; when a
/// reader has not returned from the driver after a second, ends the process with `exit_code`, no
/// destructor run: nothing in it can end that thread. To be called when nothing else is left to do.
void EndGpuReaders(Metrics& metrics, const Logger& log, int exit_code);

}  // namespace norm::server
