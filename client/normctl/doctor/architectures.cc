#include "client/normctl/doctor/architectures.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace norm::normctl {
namespace {

bool Covers(absl::string_view architecture, int device) {
  const bool real_alone = absl::ConsumeSuffix(&architecture, "-real");
  const bool virtual_alone = absl::ConsumeSuffix(&architecture, "-virtual");
  const bool one_device_alone = !architecture.empty() && absl::ascii_isalpha(architecture.back());
  if (one_device_alone) architecture.remove_suffix(1);
  int built = 0;
  if (!absl::SimpleAtoi(architecture, &built)) return false;
  if (one_device_alone) return built == device;
  const bool machine_code = !virtual_alone && built / 10 == device / 10 && built <= device;
  const bool ptx = !real_alone && built <= device;
  return machine_code || ptx;
}

}  // namespace

bool HasImage(const std::vector<std::string>& built, int compute_capability) {
  return std::any_of(built.begin(), built.end(), [&](const std::string& architecture) {
    return Covers(architecture, compute_capability);
  });
}

}  // namespace norm::normctl
