// How many threads are of use here: the default of every thread count.
#pragma once

#include <filesystem>

namespace norm::server {

/// Cores that this process may run on, and no more than its CPU limit, rounded up: more threads would
/// use up the limit early in each period, and all of them would stand still for the rest of it.
/// At least 1.
int UsableCores();

/// The least CPU limit of the control groups (v1 or v2) that this process is in, in cores: that of its
/// container, say. Infinity: none. `root`: where /proc and the groups' mount points are looked for.
double CpuLimit(const std::filesystem::path& root = "/");

}  // namespace norm::server
