// Memory that a job brings along.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/device/buffer_pool.h"
#include "server/scheduler/job.h"

namespace norm::server {

struct JobMemoryBytes {
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t workspace = 0;  // 0: of other memory, or none
};

/// Leases of the pool that batches stage their tensors in. Errors: UNAVAILABLE when leases would
/// take more than half of the budget, so that batches find room beside them; as BufferPool::Lease.
absl::StatusOr<JobMemory> LeaseJobMemory(BufferPool& pool, const JobMemoryBytes& bytes);

}  // namespace norm::server
