#include "server/device/device_registry.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/device/copy_bandwidth.h"
#include "server/device/cpu_batch_executor.h"
#include "server/device/cuda_devices.h"
#include "server/device/usable_cores.h"

namespace norm::server {
namespace {

const char* CpuModel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return "x86-64 AVX-512";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return "x86-64 AVX2";
  }
  return "x86-64";
#elif defined(__aarch64__)
  return "AArch64";
#else
  return "CPU";
#endif
}

DeviceFacts DescribeCpu() {
  DeviceFacts cpu;
  cpu.kind = DeviceKind::kCpu;
  cpu.name = "cpu";
  cpu.model = CpuModel();
  cpu.multiprocessors = UsableCores();
  return cpu;
}

}  // namespace

absl::StatusOr<FoundDevices> FindDevices(DeviceSelection selection) {
  FoundDevices found;
  if (selection != DeviceSelection::kCpu) {
    found = FindCudaDevices();
    if (found.devices.empty() && selection == DeviceSelection::kCuda) {
      return absl::FailedPreconditionError(
          absl::StrCat("--device=cuda: no usable CUDA device: ", absl::StrJoin(found.notes, "; ")));
    }
  }
  if (found.devices.empty()) {
    if (selection == DeviceSelection::kAuto) {
      found.notes.push_back(
          "no usable GPU: the CPU backend serves (a container needs --gpus all or the like)");
    }
    found.devices.push_back(DescribeCpu());
  }
  return found;
}

absl::StatusOr<std::unique_ptr<DeviceRegistry>> DeviceRegistry::Create(
    std::vector<DeviceFacts> devices, const DeviceOptions& options, Metrics& metrics) {
  auto registry = std::make_unique<DeviceRegistry>();
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto index = static_cast<int>(i);
    const absl::Time start = absl::Now();
    const absl::Cleanup note_time = [&facts = devices[i], start] {
      facts.start_up += absl::Now() - start;
    };
    if (devices[i].kind == DeviceKind::kCuda) {
      auto executor = MakeCudaExecutor(devices[i], index, options, metrics);
      if (!executor.ok()) {
        return absl::Status(executor.status().code(),
                            absl::StrCat(devices[i].name, ": ", executor.status().message()));
      }
      registry->executors_.push_back(*std::move(executor));
      continue;
    }
    CpuBatchExecutorOptions cpu;
    cpu.device_name = devices[i].name;
    cpu.device_index = index;
    cpu.slots = options.cpu_slots;
    cpu.kernel_threads = options.cpu_threads.value_or(UsableCores());
    cpu.memory_budget_bytes = options.cpu_memory_bytes;
    metrics.SetDeviceCopyBandwidth(index, MeasureHostCopyBandwidth(cpu.kernel_threads));
    metrics.SetDeviceLimits(index,
                            {.slots = cpu.slots, .pinned_pool_bytes = cpu.memory_budget_bytes});
    registry->executors_.push_back(std::make_unique<CpuBatchExecutor>(std::move(cpu), metrics));
  }
  registry->devices_ = std::move(devices);
  return registry;
}

std::vector<BatchExecutor*> DeviceRegistry::executors() const {
  std::vector<BatchExecutor*> executors;
  for (const auto& executor : executors_) {
    executors.push_back(executor.get());
  }
  return executors;
}

absl::StatusOr<std::shared_ptr<std::byte>> DeviceRegistry::PageLockedMemory(int64_t bytes) const {
  const bool cuda = std::any_of(devices_.begin(), devices_.end(), [](const DeviceFacts& device) {
    return device.kind == DeviceKind::kCuda;
  });
  return cuda ? MakePageLockedMemory(bytes) : std::shared_ptr<std::byte>();
}

bool DeviceRegistry::any_healthy() const {
  return std::any_of(executors_.begin(), executors_.end(),
                     [](const auto& executor) { return executor->healthy(); });
}

}  // namespace norm::server
