// What `normctl doctor` finds on this machine, before anything is concluded from it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace norm::normctl {

/// An error of the CUDA driver: CUDA_ERROR_NO_DEVICE is 100.
struct DriverError {
  int code = 0;
  std::string what;  // "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
};

/// Bytes per second, read and written counted once each way: a copy within the device moves twice its
/// size.
struct CopyBandwidth {
  double to_device = 0;
  double from_device = 0;
  double on_device = 0;
};

struct PcieLink {
  int generation = 0;
  int width = 0;      // lanes
  int max_width = 0;  // of GPU and slot
};

/// One GPU as the CUDA driver shows it to this process.
struct GpuFacts {
  int ordinal = 0;
  std::string name;
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  double memory_bandwidth = 0;  // bytes/s by clock and bus width; 0 where the driver does not say
  std::string pci_bus_id;
  std::optional<CopyBandwidth> copies;
  std::optional<DriverError> copy_error;  // instead of them
  // By NVML, where it is there.
  std::optional<PcieLink> link;
  std::vector<std::string> slowed_by;  // "thermal slowdown", ...: reasons for low clocks right now
  int64_t uncorrected_memory_errors = 0;
};

struct DriverFacts {
  std::string library_error;         // why libcuda.so.1 cannot be loaded; empty where it was
  std::optional<DriverError> error;  // of cuInit and of asking for devices
  int cuda_version = 0;              // that it supports: 13000 for 13.0
  std::vector<GpuFacts> gpus;
};

/// The driver as the management library (NVML) sees it: all GPUs of the container, whatever
/// CUDA_VISIBLE_DEVICES says.
struct ManagementFacts {
  std::string driver_version;  // "580.95.05"; empty without NVML
  int gpus = 0;
};

struct BuildFacts {
  std::string version;                     // of normctl
  int cuda_version = 0;                    // of the toolkit; 0: built without CUDA
  std::vector<std::string> architectures;  // as CMake has them
};

struct ProcessLimits {
  int64_t open_files = 0;       // soft; -1: no limit
  int64_t locked_bytes = 0;     // likewise
  int64_t container_bytes = 0;  // of the control group; -1: no limit
};

struct MachineFacts {
  BuildFacts build;
  std::map<std::string, std::string>
      environment;                        // those of CUDA and NVIDIA's containers that are set
  std::vector<std::string> device_nodes;  // "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"
  std::string kernel_driver_version;      // /proc/driver/nvidia/version; empty without one
  int runtime_version = 0;  // of the libcudart that is found; 0: none is (it may be linked in)
  DriverFacts driver;
  ManagementFacts management;
  int64_t shared_memory_bytes = -1;  // of /dev/shm; -1: it is not there
  ProcessLimits limits;
  int64_t unix_seconds = 0;
};

}  // namespace norm::normctl
