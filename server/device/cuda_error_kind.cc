#include "server/device/cuda_error_kind.h"

#include "norm/cuda/cuda_status.h"

namespace norm::server {

CudaErrorKind CudaErrorKindOf(const Status& status) {
  if (!cuda::IsSticky(status)) {
    return status.code() == StatusCode::kOutOfMemory ? CudaErrorKind::kOutOfMemory
                                                     : CudaErrorKind::kRefused;
  }
  switch (static_cast<cudaError_t>(status.cuda_error())) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
      return CudaErrorKind::kMemoryFault;
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
      return CudaErrorKind::kKernelFault;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
      return CudaErrorKind::kHardware;
    default:
      return CudaErrorKind::kContextLost;
  }
}

}  // namespace norm::server
