#include "tests/support/cpu_runner.h"
#include "tests/support/test_runner.h"

namespace norm::testing {

std::unique_ptr<NormRunner> MakeTestRunner() { return MakeCpuRunner(2); }

}  // namespace norm::testing
