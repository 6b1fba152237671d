#include <gtest/gtest.h>

#include "server/device/cuda_batch_executor.h"
#include "tests/unit/server/device/executor_allocations.h"

namespace norm::server {
namespace {

TEST(CudaExecutorAllocationsTest, ABatchTakesNextToNothingFromTheHeap) {
  Metrics metrics({"cuda:0"}, BatchCloseReasonNames());
  auto executor = CudaBatchExecutor::Create({}, metrics);
  ASSERT_TRUE(executor.ok()) << executor.status();
  test::ExpectFewAllocations(**executor);
}

}  // namespace
}  // namespace norm::server
