// Which devices this process computes on, and their executors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

/// --device: every usable GPU or else the CPU; the GPUs or nothing; the CPU.
enum class DeviceSelection : uint8_t { kAuto, kCuda, kCpu };

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct DeviceFacts {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;            // "cpu", "cuda:0": the metrics' label and Timing.device
  std::string model;           // "NVIDIA H200"; for the CPU its vector instruction set
  int ordinal = 0;             // of the CUDA runtime; 0 for the CPU
  int64_t memory_bytes = 0;    // of the GPU; 0 for the CPU
  int compute_capability = 0;  // 90 for sm_90; 0 for the CPU
  int multiprocessors = 0;     // or CPU threads
  // From the first look at it until its executor takes batches. The first GPU's has the driver's
  // own start, each GPU's its context with all kernels, pinned memory and the first launches.
  absl::Duration start_up;
};

struct FoundDevices {
  std::vector<DeviceFacts> devices;  // at least one
  std::vector<std::string> notes;    // one line per device or backend passed over, and why
};

/// Looks for devices. To be called before the process has threads: it sets
/// CUDA_MODULE_LOADING=EAGER in the environment unless that is set, so that no kernel is loaded
/// during a request.
///
/// Errors: FAILED_PRECONDITION, one line, when `selection` leaves none.
absl::StatusOr<FoundDevices> FindDevices(DeviceSelection selection);

/// GPUs that the CUDA runtime sees, usable or not; 0 without a CUDA backend or driver. Makes no
/// context.
int CountCudaDevices();

struct DeviceOptions {
  int cuda_slots = 3;
  int64_t pinned_memory_bytes = int64_t{2} << 30;  // per GPU
  std::optional<int64_t> device_memory_bytes;  // per GPU; three quarters of what is free if absent
  int64_t prewarm_bytes = int64_t{64} << 20;   // of a GPU's requests: CudaBatchExecutorOptions
  int cpu_slots = 2;
  std::optional<int> cpu_threads;  // of one large kernel; all of the machine if absent
  int64_t cpu_memory_bytes = int64_t{2} << 30;
};

/// Owns one executor per device. Must outlive the scheduler that uses them.
class DeviceRegistry {
 public:
  /// `devices`: as FindDevices gave them; their order is that of the Metrics' device names.
  /// Measures each device's copy bandwidth for the metrics.
  static absl::StatusOr<std::unique_ptr<DeviceRegistry>> Create(std::vector<DeviceFacts> devices,
                                                                const DeviceOptions& options,
                                                                Metrics& metrics);

  const std::vector<DeviceFacts>& devices() const { return devices_; }
  /// In the order of devices().
  std::vector<BatchExecutor*> executors() const;
  bool healthy(size_t device) const { return executors_[device]->healthy(); }
  /// Host memory that every GPU of devices() copies from and to at full speed; null where there is
  /// none. It may outlive the registry. RESOURCE_EXHAUSTED when the system has too little.
  absl::StatusOr<std::shared_ptr<std::byte>> PageLockedMemory(int64_t bytes) const;
  /// Whether any device is.
  bool any_healthy() const;

 private:
  std::vector<DeviceFacts> devices_;
  std::vector<std::unique_ptr<BatchExecutor>> executors_;
};

}  // namespace norm::server
