// What this process takes of its machine, as /proc and the kernel say.
#pragma once

namespace norm::server {

/// Zero what the system does not tell.
struct ProcessUsage {
  double cpu_seconds = 0;
  double resident_bytes = 0;
  double open_fds = 0;
  double max_fds = 0;
  double threads = 0;
};

ProcessUsage ReadProcessUsage();

}  // namespace norm::server
