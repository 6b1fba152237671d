// What a device is, and whether this build has machine code for it.
#pragma once

#include <cstdint>
#include <string>

#include "norm/kernels/result.h"

namespace norm::cuda {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_memory_per_block_bytes = 0;  // the opt-in limit
  std::string pci_bus_id;                     // "0000:3b:00.0"
};

/// Devices this process can see; zero when there is no GPU. An error when the driver is missing,
/// too old or broken.
Result<int> DeviceCount();

/// Facts of one device. Creates its context when `ordinal` is first used.
Result<DeviceInfo> QueryDevice(int ordinal);

/// Free bytes of device memory at this moment.
Result<int64_t> FreeDeviceMemoryBytes(int ordinal);

/// The architectures this library was built for, as "sm_75, sm_90, compute_120".
std::string BuiltArchitectures();

/// OK when the device can run this build's kernels; else kUnsupported "built for sm_..., this
/// device is sm_...".
Status CheckDeviceImage(int ordinal);

}  // namespace norm::cuda
