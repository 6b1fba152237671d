#include "dispatch/launch.h"

#include <cuda_runtime_api.h>

#include "norm/cuda/cuda_status.h"

namespace norm::internal {

Status LaunchKernel(const void* kernel, const LaunchConfig& config, const void* params,
                    StreamHandle stream) {
  if (kernel == nullptr) {
    return Status(StatusCode::kUnsupported, "no kernel was built for this method and dtype");
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim =
      dim3(static_cast<unsigned>(config.blocks_x), static_cast<unsigned>(config.blocks_y), 1);
  launch.blockDim =
      dim3(static_cast<unsigned>(config.threads_x), static_cast<unsigned>(config.threads_y), 1);
  launch.stream = stream;
  void* arguments[] = {const_cast<void*>(params)};
  return cuda::ToStatus(cudaLaunchKernelExC(&launch, kernel, arguments), "cudaLaunchKernel");
}

Result<DeviceTraits> CurrentDeviceTraits() {
  int device = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  DeviceTraits traits;
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&traits.sm_count, cudaDevAttrMultiProcessorCount, device));
  return traits;
}

}  // namespace norm::internal
