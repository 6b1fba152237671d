#include "norm/cuda/cuda_status.h"

#include <string>

namespace norm::cuda {

ErrorKind ClassifyError(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
    case cudaErrorNotReady:
      return ErrorKind::kNone;
    case cudaErrorMemoryAllocation:
      return ErrorKind::kOutOfMemory;
    // The errors of which the runtime's documentation says that the process must end before CUDA
    // can be used again.
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return ErrorKind::kSticky;
    default:
      return ErrorKind::kRefused;
  }
}

bool IsSticky(const Status& status) {
  return ClassifyError(static_cast<cudaError_t>(status.cuda_error())) == ErrorKind::kSticky;
}

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  (void)cudaGetLastError();
  const StatusCode code = ClassifyError(error) == ErrorKind::kOutOfMemory ? StatusCode::kOutOfMemory
                                                                          : StatusCode::kCuda;
  return Status(
      code, std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error),
      static_cast<int>(error));
}

}  // namespace norm::cuda
