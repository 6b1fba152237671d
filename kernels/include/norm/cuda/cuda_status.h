// From cudaError_t to norm::Status, once.
#pragma once

#include <cuda_runtime_api.h>

#include "norm/kernels/status.h"

namespace norm::cuda {

/// What a CUDA error means for the work that follows it.
enum class ErrorKind {
  kNone,
  kOutOfMemory,  // this allocation was refused; everything else goes on
  kRefused,      // this call was refused (bad configuration, bad argument); everything else goes on
  kSticky,  // the context is poisoned: every later call on the device fails until the process ends
};

ErrorKind ClassifyError(cudaError_t error);

/// Whether the CUDA error carried by `status` poisons the context.
bool IsSticky(const Status& status);

/// OK for cudaSuccess; else kOutOfMemory or kCuda with "<what>: <error name>: <error text>". Also
/// clears the runtime's last error of this thread, so that a refused call is not blamed on the next
/// one.
Status ToStatus(cudaError_t error, const char* what);

}  // namespace norm::cuda

/// Evaluates a CUDA runtime call and returns its Status from the enclosing function when it failed.
#define NORM_RETURN_IF_CUDA_ERROR(call) NORM_RETURN_IF_ERROR(::norm::cuda::ToStatus((call), #call))
