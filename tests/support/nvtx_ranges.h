// An NVTX tool that counts the ranges of this process, in place of a profiler.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace norm::test {

/// Has NVTX load this library as its tool. To be called before the process opens its first range.
void CountNvtxRanges();

/// Ranges opened so far, by name, on all threads.
std::map<std::string, int64_t> NvtxRanges();
/// Those not closed yet.
int64_t OpenNvtxRanges();

}  // namespace norm::test
