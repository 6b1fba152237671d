// The backend that a test executable was linked for.
#pragma once

#include <memory>

#include "tests/support/norm_runner.h"

namespace norm::testing {

/// Defined once per executable of the kernel test bodies.
std::unique_ptr<NormRunner> MakeTestRunner();

}  // namespace norm::testing
