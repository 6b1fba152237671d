// Where normbench finds what is installed with it.
#pragma once

#include <string>
#include <vector>

#include "norm/kernels/result.h"

namespace norm::bench {

/// A file of share/normbench, which stands beside the binary or one folder above it.
Result<std::string> InstalledFile(const std::string& name);

/// The path of this binary.
Result<std::string> BinaryPath();

/// Replaces this process by `python3 <script> <arguments>`. Returns only when that fails: no
/// python3, or no such script.
Status ExecScript(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace norm::bench
