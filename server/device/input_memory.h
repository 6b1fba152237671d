// Memory for inputs that are put together before their job exists.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/device/buffer_pool.h"
#include "server/scheduler/job.h"

namespace norm::server {

/// A lease of the pool that batches stage their inputs in. Errors: UNAVAILABLE when leases would
/// take more than half of the budget, so that batches find room beside them; as BufferPool::Lease.
absl::StatusOr<InputMemory> LeaseInputFrom(BufferPool& pool, int64_t bytes);

}  // namespace norm::server
