// How findings are printed.
#pragma once

#include <string>
#include <vector>

#include "client/normctl/doctor/finding.h"

namespace norm::normctl {

/// A line for each finding, its cure on the next, and a last line that counts errors and warnings.
std::string DoctorText(const std::vector<Finding>& findings);

/// {"findings": [{"severity", "check", "seen", "cure"}], "errors": n, "warnings": n}, with a last newline; cure is
/// null where there is none.
std::string DoctorJson(const std::vector<Finding>& findings);

/// Findings of that severity.
int Count(const std::vector<Finding>& findings, Severity severity);

}  // namespace norm::normctl
