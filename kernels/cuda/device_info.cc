#include "norm/cuda/device_info.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/image_probe.h"
#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"

namespace norm::cuda {
namespace {

Result<int> Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&value, attribute, ordinal), "cudaDeviceGetAttribute"));
  return value;
}

}  // namespace

Result<int> DeviceCount() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return 0;
  }
  NORM_RETURN_IF_ERROR(ToStatus(error, "cudaGetDeviceCount"));
  return count;
}

Result<DeviceInfo> QueryDevice(int ordinal) {
  cudaDeviceProp properties;
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  char bus_id[32] = {};
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal), "cudaDeviceGetPCIBusId"));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.sm_count = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  info.shared_memory_per_block_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  info.pci_bus_id = bus_id;
  return info;
}

Result<int64_t> FreeDeviceMemoryBytes(int ordinal) {
  DeviceGuard guard(ordinal);
  NORM_RETURN_IF_ERROR(guard.status());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  NORM_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  return static_cast<int64_t>(free_bytes);
}

std::string BuiltArchitectures() { return NORM_BUILT_ARCHITECTURES; }

Status CheckDeviceImage(int ordinal) {
  DeviceGuard guard(ordinal);
  NORM_RETURN_IF_ERROR(guard.status());
  const cudaError_t error = norm_device::ProbeImage();
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
      error != cudaErrorUnsupportedPtxVersion) {
    return ToStatus(error, "cudaFuncGetAttributes");
  }
  (void)cudaGetLastError();
  const Result<int> major = Attribute(cudaDevAttrComputeCapabilityMajor, ordinal);
  NORM_RETURN_IF_ERROR(major.status());
  const Result<int> minor = Attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  NORM_RETURN_IF_ERROR(minor.status());
  return Status(StatusCode::kUnsupported,
                "built for " + BuiltArchitectures() + ", this device is sm_" +
                    std::to_string(major.value()) + std::to_string(minor.value()),
                static_cast<int>(error));
}

}  // namespace norm::cuda
