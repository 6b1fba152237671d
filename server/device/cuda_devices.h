// The CUDA side of the device registry; a build without CUDA has one that finds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/device_registry.h"

namespace norm::server {

/// GPUs that can run this build; a note for each that cannot, or for why there is none.
FoundDevices FindCudaDevices();

absl::StatusOr<std::unique_ptr<BatchExecutor>> MakeCudaExecutor(const DeviceFacts& device,
                                                                int device_index,
                                                                const DeviceOptions& options,
                                                                Metrics& metrics);

/// Page-locked for every GPU of the process.
absl::StatusOr<std::shared_ptr<std::byte>> MakePageLockedMemory(int64_t bytes);

}  // namespace norm::server
