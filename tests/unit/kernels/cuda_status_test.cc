// Classification of CUDA errors. No device needed.
#include "norm/cuda/cuda_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace norm::cuda {
namespace {

TEST(CudaStatusTest, PoisonedContextsAreSticky) {
  for (cudaError_t error : {cudaErrorIllegalAddress, cudaErrorMisalignedAddress,
                            cudaErrorLaunchFailure, cudaErrorAssert, cudaErrorECCUncorrectable}) {
    EXPECT_EQ(ClassifyError(error), ErrorKind::kSticky) << cudaGetErrorName(error);
    EXPECT_TRUE(IsSticky(ToStatus(error, "call"))) << cudaGetErrorName(error);
  }
}

TEST(CudaStatusTest, RefusedCallsAreNotSticky) {
  for (cudaError_t error : {cudaErrorInvalidValue, cudaErrorInvalidConfiguration,
                            cudaErrorLaunchOutOfResources, cudaErrorNoKernelImageForDevice}) {
    EXPECT_EQ(ClassifyError(error), ErrorKind::kRefused) << cudaGetErrorName(error);
    EXPECT_FALSE(IsSticky(ToStatus(error, "call")));
  }
  EXPECT_EQ(ClassifyError(cudaErrorMemoryAllocation), ErrorKind::kOutOfMemory);
  EXPECT_EQ(ClassifyError(cudaErrorNotReady), ErrorKind::kNone);
}

TEST(CudaStatusTest, MessagesNameTheCallAndTheError) {
  const Status status = ToStatus(cudaErrorInvalidValue, "cudaMemcpyAsync");
  EXPECT_EQ(status.code(), StatusCode::kCuda);
  EXPECT_EQ(status.cuda_error(), cudaErrorInvalidValue);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("cudaMemcpyAsync: cudaErrorInvalidValue"));
  EXPECT_TRUE(ToStatus(cudaSuccess, "call").ok());
  EXPECT_FALSE(IsSticky(Status()));
}

}  // namespace
}  // namespace norm::cuda
