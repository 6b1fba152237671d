#include "server/device/cuda_devices.h"

namespace norm::server {

int CountCudaDevices() { return 0; }

FoundDevices FindCudaDevices() { return {{}, {"this build has no CUDA backend"}}; }

absl::StatusOr<std::unique_ptr<BatchExecutor>> MakeCudaExecutor(const DeviceFacts&, int,
                                                                const DeviceOptions&, Metrics&) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

absl::StatusOr<std::shared_ptr<std::byte>> MakePageLockedMemory(int64_t) {
  return absl::UnimplementedError("this build has no CUDA backend");
}

}  // namespace norm::server
