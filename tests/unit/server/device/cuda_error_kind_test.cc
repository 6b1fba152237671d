#include "server/device/cuda_error_kind.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "norm/cuda/cuda_status.h"

namespace norm::server {
namespace {

CudaErrorKind KindOf(cudaError_t error) { return CudaErrorKindOf(cuda::ToStatus(error, "call")); }

TEST(CudaErrorKindTest, NamesWhatTheErrorWasAbout) {
  EXPECT_EQ(KindOf(cudaErrorMemoryAllocation), CudaErrorKind::kOutOfMemory);
  EXPECT_EQ(KindOf(cudaErrorInvalidConfiguration), CudaErrorKind::kRefused);
  EXPECT_EQ(KindOf(cudaErrorIllegalAddress), CudaErrorKind::kMemoryFault);
  EXPECT_EQ(KindOf(cudaErrorLaunchFailure), CudaErrorKind::kKernelFault);
  EXPECT_EQ(KindOf(cudaErrorECCUncorrectable), CudaErrorKind::kHardware);
  EXPECT_EQ(KindOf(cudaErrorContextIsDestroyed), CudaErrorKind::kContextLost);
  EXPECT_EQ(CudaErrorKindOf(Status(StatusCode::kOutOfMemory, "host")), CudaErrorKind::kOutOfMemory);
}

TEST(CudaErrorKindTest, IsStickyWhereTheContextIsPoisoned) {
  for (int error = 1; error < 1000; ++error) {
    const Status status = cuda::ToStatus(static_cast<cudaError_t>(error), "call");
    EXPECT_EQ(IsSticky(CudaErrorKindOf(status)), cuda::IsSticky(status)) << error;
  }
}

}  // namespace
}  // namespace norm::server
