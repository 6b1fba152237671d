// The memory of a running normd, as it tells and as the GPU's driver does.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace norm::test {

/// One look; MiB. `pinned`, `device_pool`: used and free slabs of all devices.
struct MemorySample {
  double rss = 0;
  double pinned = 0;
  double device_pool = 0;
  double gpu = -1;  // see GpuMemory
  double in_flight = 0;
  double in_flight_limit = 0;
};

/// MiB that nvidia-smi counts: of the process whose id NORMD_PID holds (with-normd.sh sets it) where
/// it lists that one, else of all processes on all GPUs; negative without nvidia-smi.
double GpuMemory();

/// What /metrics of normd says; nothing where it does not answer. `gpu` is left out.
std::optional<MemorySample> ParseMemory(const std::string& metrics_text);

/// Of samples from `settled` on: first, last and largest of each figure; and whether none but those
/// in flight has grown by more than `max_growth_mib` (0: not asked), nor what is in flight over its
/// limit. There are some.
nlohmann::json MemoryReport(const std::vector<MemorySample>& samples, size_t settled,
                            double max_growth_mib);

/// Looks every `interval`, on a thread of its own, until Stop.
class MemoryWatch {
 public:
  /// `metrics`: host:port of /metrics, on this machine.
  MemoryWatch(std::string metrics, absl::Duration interval);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// The samples, in order. Once.
  std::vector<MemorySample> Stop();

 private:
  void Run();

  const std::string metrics_;
  const absl::Duration interval_;
  std::atomic<bool> stop_{false};
  std::vector<MemorySample> samples_;  // the thread's until it has ended
  std::thread thread_;
};

}  // namespace norm::test
