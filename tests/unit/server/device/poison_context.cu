#include "tests/unit/server/device/poison_context.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace norm_device {
namespace {

__global__ void WriteAnywhere(uintptr_t address) { *reinterpret_cast<volatile int*>(address) = 1; }

}  // namespace

bool PoisonContext() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    return false;
  }
  WriteAnywhere<<<1, 1, 0, stream>>>(64);
  const bool poisoned = cudaStreamSynchronize(stream) == cudaErrorIllegalAddress;
  (void)cudaGetLastError();
  return poisoned;
}

}  // namespace norm_device
