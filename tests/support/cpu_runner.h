// The CPU backend as a NormRunner.
#pragma once

#include <memory>

#include "tests/support/norm_runner.h"

namespace norm::testing {

std::unique_ptr<NormRunner> MakeCpuRunner(int threads);

}  // namespace norm::testing
