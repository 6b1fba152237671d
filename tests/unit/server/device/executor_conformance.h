// What every BatchExecutor must do, whatever its device. Instantiated by the test of each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "server/device/buffer_pool.h"
#include "server/observability/metrics.h"
#include "server/scheduler/batch_executor.h"
#include "tests/unit/server/device/oracle_check.h"

namespace norm::server {

/// An executor under test.
struct ExecutorUnderTest {
  std::unique_ptr<BatchExecutor> executor;
  std::function<PoolUsage()> staging;  // of the memory that results live in
  std::function<PoolUsage()> device;   // of the memory that kernels use
  std::function<int64_t()> host_copied_bytes;
  bool times_copy_in = true;  // false where kernels read large batches in staging memory, too
};

struct ExecutorCase {
  std::string name;
  /// Staging memory as given; one device, index 0 of the metrics.
  std::function<ExecutorUnderTest(int64_t memory_bytes, Metrics& metrics)> make;

  friend void PrintTo(const ExecutorCase& which, std::ostream* os) { *os << which.name; }
};

class ExecutorConformanceTest : public testing::TestWithParam<ExecutorCase> {
 protected:
  void Make(int64_t memory_bytes) { under_test_ = GetParam().make(memory_bytes, metrics_); }
  BatchExecutor& executor() { return *under_test_.executor; }

  /// Runs these jobs as one batch, in segments as Batch has them, and waits for it.
  std::vector<JobResult> Run(std::vector<test::JobBuilder> builders,
                             std::vector<int64_t> segment_jobs = {});
  JobResult RunAlone(const test::ProblemInputs& inputs) {
    return std::move(Run({test::BuilderFor(inputs)})[0]);
  }

  Metrics metrics_{{"device"}, BatchCloseReasonNames()};
  ExecutorUnderTest under_test_;
};

/// One problem per op, direction, mode and layout, with all optional tensors or none.
std::vector<NormProblem> EveryComputation(DType dtype, DType weight_dtype);

}  // namespace norm::server
