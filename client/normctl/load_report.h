// What `normctl bench` prints.
#pragma once

#include <string>

#include "client/normctl/load_options.h"
#include "client/normctl/load_run.h"

namespace norm::normctl {

/// The table, with a last newline.
std::string LoadTable(const LoadOptions& options, const LoadOutcome& outcome);

/// Every option and every figure as one JSON object, with a last newline. A figure that the run did
/// not give is null.
std::string LoadJson(const LoadOptions& options, const LoadOutcome& outcome);

}  // namespace norm::normctl
