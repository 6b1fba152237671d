#include "server/device/cuda_devices.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "norm/cuda/device_info.h"
#include "server/device/cuda_batch_executor.h"
#include "server/device/cuda_copy_bandwidth.h"
#include "server/device/cuda_memory.h"
#include "server/device/kernel_status.h"
#include "server/device/nvml_device.h"
#include "server/device/usable_cores.h"

namespace norm::server {

int CountCudaDevices() {
  const Result<int> count = cuda::DeviceCount();
  return count.ok() ? count.value() : 0;
}

FoundDevices FindCudaDevices() {
  FoundDevices found;
  // Read by the driver when it is first used. Lazy loading would load each kernel during the first
  // request that needs it, waiting for the work of all others.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  absl::Time start = absl::Now();
  const Result<int> count = cuda::DeviceCount();
  if (!count.ok()) {
    found.notes.push_back(
        absl::StrCat(count.status().message(),
                     " (normctl doctor tells the driver from the one that this build needs)"));
    return found;
  }
  if (count.value() == 0) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    found.notes.push_back(
        visible == nullptr ? "the CUDA runtime sees no device"
                           : absl::StrCat("the CUDA runtime sees no device (CUDA_VISIBLE_DEVICES='",
                                          visible, "')"));
  }
  for (int ordinal = 0; ordinal < count.value(); ++ordinal) {
    const std::string name = absl::StrCat("cuda:", ordinal);
    const Result<cuda::DeviceInfo> info = cuda::QueryDevice(ordinal);
    const Status usable = info.ok() ? cuda::CheckDeviceImage(ordinal) : info.status();
    if (!usable.ok()) {
      found.notes.push_back(absl::StrCat(name, ": ", usable.message()));
      continue;
    }
    DeviceFacts device;
    device.kind = DeviceKind::kCuda;
    device.name = name;
    device.model = info.value().name;
    device.ordinal = ordinal;
    device.memory_bytes = info.value().memory_bytes;
    device.compute_capability = info.value().compute_major * 10 + info.value().compute_minor;
    device.multiprocessors = info.value().sm_count;
    device.start_up = absl::Now() - std::exchange(start, absl::Now());
    found.devices.push_back(std::move(device));
  }
  return found;
}

absl::StatusOr<std::unique_ptr<BatchExecutor>> MakeCudaExecutor(const DeviceFacts& device,
                                                                int device_index,
                                                                const DeviceOptions& options,
                                                                Metrics& metrics) {
  // Without it the share of the bandwidth is not recorded; a card that is nearly full still serves.
  if (const Result<double> bandwidth = MeasureDeviceCopyBandwidth(device.ordinal); bandwidth.ok()) {
    metrics.SetDeviceCopyBandwidth(device_index, bandwidth.value());
  }
  CudaBatchExecutorOptions cuda;
  cuda.device_name = device.name;
  cuda.device_index = device_index;
  cuda.ordinal = device.ordinal;
  cuda.slots = options.cuda_slots;
  // A quarter of the machine at most: the rest receives and sends.
  cuda.copy_helpers = std::min(cuda.copy_helpers, UsableCores() / 4);
  cuda.pinned_budget_bytes = options.pinned_memory_bytes;
  cuda.prewarm_bytes = options.prewarm_bytes;
  if (options.device_memory_bytes.has_value()) {
    cuda.device_budget_bytes = *options.device_memory_bytes;
  } else {
    const Result<int64_t> free = cuda::FreeDeviceMemoryBytes(device.ordinal);
    if (!free.ok()) {
      return ToAbslStatus(free.status());
    }
    cuda.device_budget_bytes = free.value() / 4 * 3;
  }
  metrics.SetDeviceLimits(device_index, {.slots = cuda.slots,
                                         .pinned_pool_bytes = cuda.pinned_budget_bytes,
                                         .device_pool_bytes = cuda.device_budget_bytes});
  // A machine without the management library has no nv_gpu_ metrics.
  if (const Result<cuda::DeviceInfo> info = cuda::QueryDevice(device.ordinal); info.ok()) {
    if (auto card = std::make_shared<const NvmlDevice>(info.value().pci_bus_id); card->found()) {
      metrics.SetGpuReader(device_index, card->uuid(), [card] { return card->Read(); });
    }
  }
  return CudaBatchExecutor::Create(cuda, metrics);
}

absl::StatusOr<std::shared_ptr<std::byte>> MakePageLockedMemory(int64_t bytes) {
  return PinnedMemory()(bytes);
}

}  // namespace norm::server
