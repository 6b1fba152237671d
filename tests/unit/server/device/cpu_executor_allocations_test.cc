#include <gtest/gtest.h>

#include "server/device/cpu_batch_executor.h"
#include "tests/unit/server/device/executor_allocations.h"

namespace norm::server {
namespace {

TEST(CpuExecutorAllocationsTest, ABatchTakesNextToNothingFromTheHeap) {
  Metrics metrics({"cpu"}, BatchCloseReasonNames());
  CpuBatchExecutorOptions options;
  options.kernel_threads = 2;
  CpuBatchExecutor executor(options, metrics);
  test::ExpectFewAllocations(executor);
}

}  // namespace
}  // namespace norm::server
