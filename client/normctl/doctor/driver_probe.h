// Asks NVIDIA's libraries, which are loaded while the program runs: normctl has no CUDA inside.
#pragma once

#include <cstdint>
#include <string>

#include "client/normctl/doctor/machine_facts.h"

namespace norm::normctl {

/// Whether copies are timed, which takes about half a second and 1.1 GiB of a GPU's memory.
enum class CopyTiming : uint8_t { kMeasured, kSkipped };

/// The CUDA driver. `library`: "libcuda.so.1".
DriverFacts LookAtDriver(const std::string& library, CopyTiming timing);

/// The management library, which also tells more of the GPUs in `driver`. `library`:
/// "libnvidia-ml.so.1".
ManagementFacts LookAtManagement(const std::string& library, DriverFacts* driver);

/// Version of a CUDA runtime library, "libcudart.so.13"; 0 where it cannot be loaded.
int LookAtRuntime(const std::string& library);

}  // namespace norm::normctl
