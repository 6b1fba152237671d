#include "dispatch/launch.h"

#include <cuda_runtime_api.h>

#include <mutex>

#include "norm/cuda/cuda_status.h"

namespace norm::internal {
namespace {

/// Held from asking for shared memory to the launch that needs it. CUDA keeps what was asked for with
/// the kernel, for every thread of the process: one that asked for less in between would have the
/// launch refused.
std::mutex& SharedMemoryAsked() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

Status LaunchKernel(const void* kernel, const LaunchConfig& config, const void* params,
                    StreamHandle stream) {
  if (kernel == nullptr) {
    return Status(StatusCode::kUnsupported, "no kernel was built for this method and dtype");
  }
  constexpr int64_t kSharedBytesWithoutAsking = 48 << 10;
  constexpr int kPortableClusterBlocks = 8;
  std::unique_lock asked(SharedMemoryAsked(), std::defer_lock);
  if (config.dynamic_shared_bytes > kSharedBytesWithoutAsking) {
    asked.lock();
    NORM_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(config.dynamic_shared_bytes)));
  }
  if (config.cluster_blocks > kPortableClusterBlocks) {
    NORM_RETURN_IF_CUDA_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attributes[3];
  unsigned attribute_count = 0;
  if (config.cluster_blocks > 1 || config.needs_cluster) {
    cudaLaunchAttribute& cluster = attributes[attribute_count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(config.cluster_blocks), 1, 1};
  }
  if (config.cooperative) {
    cudaLaunchAttribute& cooperative = attributes[attribute_count++];
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  if (config.overlaps_previous) {
    cudaLaunchAttribute& overlap = attributes[attribute_count++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim =
      dim3(static_cast<unsigned>(config.blocks_x), static_cast<unsigned>(config.blocks_y), 1);
  launch.blockDim =
      dim3(static_cast<unsigned>(config.threads_x), static_cast<unsigned>(config.threads_y), 1);
  launch.dynamicSmemBytes = static_cast<size_t>(config.dynamic_shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = attribute_count;
  void* arguments[] = {const_cast<void*>(params)};
  return cuda::ToStatus(cudaLaunchKernelExC(&launch, kernel, arguments), "cudaLaunchKernel");
}

Result<DeviceTraits> CurrentDeviceTraits() {
  int device = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  DeviceTraits traits;
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&traits.sm_count, cudaDevAttrMultiProcessorCount, device));
  int major = 0;
  int minor = 0;
  int shared_bytes = 0;
  int l2_bytes = 0;
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  NORM_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
  traits.compute_capability = major * 10 + minor;
  traits.max_shared_bytes = shared_bytes;
  traits.l2_bytes = l2_bytes;
  return traits;
}

}  // namespace norm::internal
