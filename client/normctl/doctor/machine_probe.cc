#include "client/normctl/doctor/machine_probe.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace norm::normctl {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05  ...": the word with two dots or one and
/// digits only.
std::string KernelDriverVersion() {
  for (absl::string_view word :
       absl::StrSplit(FirstLine("/proc/driver/nvidia/version"), ' ', absl::SkipEmpty())) {
    if (absl::StrContains(word, '.') &&
        word.find_first_not_of("0123456789.") == absl::string_view::npos)
      return std::string(word);
  }
  return "";
}

int64_t SoftLimit(decltype(RLIMIT_NOFILE) which) {
  rlimit limit = {};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t ContainerMemory() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t bytes = 0;
    // The first version says "no limit" by a number near the largest.
    if (absl::SimpleAtoi(FirstLine(path), &bytes)) return bytes < int64_t{1} << 60 ? bytes : -1;
  }
  return -1;
}

int64_t SharedMemoryBytes() {
  struct statvfs status = {};
  if (statvfs("/dev/shm", &status) != 0) return -1;
  return static_cast<int64_t>(status.f_blocks) * static_cast<int64_t>(status.f_frsize);
}

}  // namespace

MachineFacts LookAtMachine(const BuildFacts& build, CopyTiming timing) {
  MachineFacts facts;
  facts.build = build;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
                           "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH"}) {
    if (const char* const value = std::getenv(name); value != nullptr)
      facts.environment[name] = value;
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string path = entry.path().string();
    if (absl::StartsWith(path, "/dev/nvidia")) facts.device_nodes.push_back(path);
  }
  facts.kernel_driver_version = KernelDriverVersion();
  if (build.cuda_version > 0)
    facts.runtime_version = LookAtRuntime(absl::StrCat("libcudart.so.", build.cuda_version / 1000));
  facts.driver = LookAtDriver("libcuda.so.1", timing);
  facts.management = LookAtManagement("libnvidia-ml.so.1", &facts.driver);
  facts.shared_memory_bytes = SharedMemoryBytes();
  facts.limits = {.open_files = SoftLimit(RLIMIT_NOFILE),
                  .locked_bytes = SoftLimit(RLIMIT_MEMLOCK),
                  .container_bytes = ContainerMemory()};
  facts.unix_seconds = absl::ToUnixSeconds(absl::Now());
  return facts;
}

}  // namespace norm::normctl
