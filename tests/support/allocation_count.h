// Counts what a test program takes from the heap. Linking allocation_count.cc replaces the global
// operator new.
#pragma once

#include <cstdint>

namespace norm::test {

/// Calls of operator new by any thread since the process began.
int64_t AllocationCount();

}  // namespace norm::test
