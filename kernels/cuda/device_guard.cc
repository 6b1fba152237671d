#include "norm/cuda/device_guard.h"

#include <cuda_runtime_api.h>

#include "norm/cuda/cuda_status.h"

namespace norm::cuda {

DeviceGuard::DeviceGuard(int device) {
  status_ = ToStatus(cudaGetDevice(&previous_), "cudaGetDevice");
  if (!status_.ok() || previous_ == device) return;
  status_ = ToStatus(cudaSetDevice(device), "cudaSetDevice");
  restore_ = status_.ok();
}

DeviceGuard::~DeviceGuard() {
  if (restore_) (void)cudaSetDevice(previous_);
}

}  // namespace norm::cuda
