#include "server/observability/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

namespace norm::server {
namespace {

double ResidentBytes() {
  long total = 0;
  long resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double Entries(const char* folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  double entries = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++entries;
  }
  return entries;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  rusage taken{};
  if (getrusage(RUSAGE_SELF, &taken) == 0) {
    usage.cpu_seconds = Seconds(taken.ru_utime) + Seconds(taken.ru_stime);
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) usage.max_fds = static_cast<double>(files.rlim_cur);
  usage.resident_bytes = ResidentBytes();
  usage.open_fds = Entries("/proc/self/fd");
  usage.threads = Entries("/proc/self/task");
  return usage;
}

}  // namespace norm::server
