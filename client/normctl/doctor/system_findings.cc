#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/normctl/doctor/machine_findings.h"

namespace norm::normctl {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
// Two descriptors a connection, and what gRPC and CUDA open.
constexpr int64_t kFewFiles = 4096;
// Docker's default is 64 MiB.
constexpr int64_t kSmallSharedMemory = kGiB;
// normd's --receive_quota_bytes, --pinned_pool_bytes and room for itself.
constexpr int64_t kDefaultMemory = 9 * kGiB;
constexpr int64_t kYear2026 = 1767225600;  // this version is not older

Finding JudgeSharedMemory(int64_t bytes) {
  if (bytes < 0) {
    return {Severity::kNote, "/dev/shm", "is not here",
            "calls over gRPC need none; clients that pass tensors in shared memory do: mount a "
            "tmpfs there"};
  }
  const std::string seen = absl::StrCat(bytes / kMiB, " MiB");
  if (bytes >= kSmallSharedMemory) return {Severity::kOk, "/dev/shm", seen, ""};
  return {Severity::kNote, "/dev/shm", seen,
          "calls over gRPC need none; NCCL and tensors in shared memory do: docker run "
          "--shm-size=1g, or an emptyDir of "
          "medium Memory in Kubernetes"};
}

Finding JudgeOpenFiles(int64_t files) {
  if (files < 0) return {Severity::kOk, "open files", "no limit", ""};
  const std::string seen = absl::StrCat("at most ", files);
  if (files >= kFewFiles) return {Severity::kOk, "open files", seen, ""};
  return {
      Severity::kWarning, "open files", absl::StrCat(seen, ": about ", files / 2, " connections"),
      "raise it: ulimit -n 65536, LimitNOFILE=65536 in systemd, --ulimit nofile=65536 in docker"};
}

Finding JudgeLockedMemory(int64_t bytes) {
  if (bytes < 0) return {Severity::kOk, "locked memory", "no limit", ""};
  return {Severity::kNote, "locked memory", absl::StrCat("at most ", bytes / kMiB, " MiB"),
          "none for normd: the NVIDIA driver does not count page-locked memory there; RDMA and "
          "NCCL over it do"};
}

Finding JudgeContainerMemory(int64_t bytes) {
  if (bytes < 0) return {Severity::kOk, "memory limit", "none", ""};
  const std::string seen = absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / kGiB);
  if (bytes >= kDefaultMemory) return {Severity::kOk, "memory limit", seen, ""};
  return {
      Severity::kWarning, "memory limit",
      absl::StrCat(seen, ", less than normd may take by default: it would be killed under load"),
      "give the container 9 GiB or more, or lower --receive_quota_bytes, --pinned_pool_bytes and "
      "--max_in_flight_bytes"};
}

Finding JudgeClock(int64_t unix_seconds) {
  const std::string seen =
      absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(unix_seconds), absl::UTCTimeZone());
  if (unix_seconds >= kYear2026) return {Severity::kOk, "clock", seen, ""};
  return {Severity::kError, "clock", absl::StrCat(seen, ": before this version was made"),
          "set the clock (NTP): certificates are not yet valid for it"};
}

}  // namespace

std::vector<Finding> JudgeSystem(const MachineFacts& facts) {
  return {JudgeSharedMemory(facts.shared_memory_bytes), JudgeOpenFiles(facts.limits.open_files),
          JudgeLockedMemory(facts.limits.locked_bytes),
          JudgeContainerMemory(facts.limits.container_bytes), JudgeClock(facts.unix_seconds)};
}

}  // namespace norm::normctl
