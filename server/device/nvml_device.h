// A card as NVIDIA's management library (NVML) sees it. The library comes with the driver and is
// looked for at run time: nothing links to it, and its absence is no error.
#pragma once

#include <memory>
#include <string>

#include "server/observability/metrics.h"

namespace norm::server {

/// Threads: safe.
class NvmlDevice {
 public:
  /// `pci_bus_id`: as the CUDA runtime writes it, "0000:3b:00.0".
  explicit NvmlDevice(const std::string& pci_bus_id);

  /// Whether the library is there and knows the card; nothing else may be called if not.
  bool found() const { return handle_ != nullptr; }
  const std::string& uuid() const { return uuid_; }
  /// Asks the driver: takes from microseconds to milliseconds.
  GpuReading Read() const;

 private:
  struct Library;
  std::shared_ptr<const Library> library_;
  void* handle_ = nullptr;
  std::string uuid_;
};

}  // namespace norm::server
