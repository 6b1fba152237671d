// What `normctl bench --json` writes. A figure that the run did not give is null.
#pragma once

#include <string>

#include "client/normctl/load_options.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_run.h"
#include "client/normctl/load_sweep.h"

namespace norm::normctl {

/// Every option and every figure as one JSON object, with a last newline.
std::string LoadJson(const LoadOptions& options, const ServerIdentity& server,
                     const LoadResult& result);

/// The options, the closed loop under "peak", and one object for each rate under "points".
std::string SweepJson(const LoadOptions& options, const ServerIdentity& server,
                      const SweepResult& result);

}  // namespace norm::normctl
