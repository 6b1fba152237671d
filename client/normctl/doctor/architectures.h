// Whether a build has machine code for a device.
#pragma once

#include <string>
#include <vector>

namespace norm::normctl {

/// `built`: architectures as CMake takes them, "75-real", "90a-real", "120", "120-virtual";
/// `compute_capability`: 90 for sm_90. Machine code (real) runs on devices of its major version and the
/// same or a later minor one, and with a letter on that device alone; PTX (virtual) on its version and
/// later ones; a number alone stands for both.
bool HasImage(const std::vector<std::string>& built, int compute_capability);

}  // namespace norm::normctl
