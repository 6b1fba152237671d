#include "server/device/usable_cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace norm::server {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::vector<std::string> Lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

std::string FirstLine(const std::filesystem::path& path) {
  std::vector<std::string> lines = Lines(path);
  return lines.empty() ? std::string() : std::move(lines.front());
}

/// Cores of `quota` microseconds in each period of as many; what is no limit ("max", -1) has none.
double CoresOf(absl::string_view quota, absl::string_view period) {
  double quota_us = 0;
  double period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) return kNoLimit;
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : kNoLimit;
}

double LimitV2(const std::filesystem::path& group) {
  const std::vector<std::string> fields = absl::StrSplit(FirstLine(group / "cpu.max"), ' ');
  return fields.size() == 2 ? CoresOf(fields[0], fields[1]) : kNoLimit;
}

double LimitV1(const std::filesystem::path& group) {
  return CoresOf(FirstLine(group / "cpu.cfs_quota_us"), FirstLine(group / "cpu.cfs_period_us"));
}

/// A hierarchy of groups: version 2's, or the one of version 1 that has the controller cpu.
struct Hierarchy {
  bool v2 = false;
  std::string mounted;      // the group that the mount point shows: "/" or the container's
  std::string mount_point;  // below the root
};

/// A line of /proc/PID/mountinfo (proc_pid_mountinfo(5)):
/// id, parent, device, root, mount point, options, optional fields, "-", type, source, its options.
std::optional<Hierarchy> HierarchyOf(const std::string& mount) {
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(mount, absl::MaxSplits(" - ", 1));
  const std::vector<std::string> fields = absl::StrSplit(halves.first, ' ');
  const std::vector<std::string> file_system = absl::StrSplit(halves.second, ' ');
  if (fields.size() < 5 || file_system.size() < 3) return std::nullopt;
  const bool v2 = file_system[0] == "cgroup2";
  if (!v2) {
    const std::vector<std::string> controllers = absl::StrSplit(file_system[2], ',');
    if (file_system[0] != "cgroup" ||
        std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end()) {
      return std::nullopt;
    }
  }
  return Hierarchy{v2, fields[3], fields[4]};
}

/// The path of this process in a hierarchy; a line of /proc/self/cgroup (cgroups(7)) is
/// "number:controllers:path", version 2's without controllers.
std::string GroupIn(const Hierarchy& hierarchy, const std::vector<std::string>& groups) {
  for (const std::string& line : groups) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool same = hierarchy.v2 ? fields[1].empty()
                                   : std::find(controllers.begin(), controllers.end(), "cpu") !=
                                         controllers.end();
    if (same) return fields[2];
  }
  return "/";
}

/// The least limit of the group and those that it is in, as far as they can be seen.
double LimitIn(const Hierarchy& hierarchy, const std::string& group,
               const std::filesystem::path& root) {
  // What the mount shows of a container's own group begins where its path ends.
  absl::string_view below = group;
  if (hierarchy.mounted != "/" && !absl::ConsumePrefix(&below, hierarchy.mounted)) below = "";
  std::filesystem::path at = root / std::filesystem::path(hierarchy.mount_point).relative_path();
  double cores = kNoLimit;
  const auto look = [&] { cores = std::min(cores, hierarchy.v2 ? LimitV2(at) : LimitV1(at)); };
  look();
  for (const absl::string_view name : absl::StrSplit(below, '/', absl::SkipEmpty())) {
    at /= std::string(name);
    look();
  }
  return cores;
}

}  // namespace

double CpuLimit(const std::filesystem::path& root) {
  const std::vector<std::string> groups = Lines(root / "proc/self/cgroup");
  double limit = kNoLimit;
  for (const std::string& mount : Lines(root / "proc/self/mountinfo")) {
    const std::optional<Hierarchy> hierarchy = HierarchyOf(mount);
    if (!hierarchy.has_value()) continue;
    limit = std::min(limit, LimitIn(*hierarchy, GroupIn(*hierarchy, groups), root));
  }
  return limit;
}

int UsableCores() {
  const auto cores = static_cast<double>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<int>(std::ceil(std::min(cores, CpuLimit())));
}

}  // namespace norm::server
