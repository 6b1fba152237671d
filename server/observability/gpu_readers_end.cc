#include "server/observability/gpu_readers_end.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace norm::server {

void EndGpuReaders(Metrics& metrics, const Logger& log, int exit_code) {
  const std::vector<std::string> hanging = metrics.StopGpuReaders(absl::Seconds(1));
  if (hanging.empty()) return;
  log.Warning("the driver does not return from a reading: ending without it",
              {{"gpu_uuid", absl::StrJoin(hanging, ",")}});
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace norm::server
