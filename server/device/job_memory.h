// Memory that a job brings along.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/buffer_pool.h"
#include "server/scheduler/job.h"

namespace norm::server {

struct JobMemoryBytes {
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t workspace = 0;  // 0: of other memory, or none
};

/// The half of the pool in which batches stage their tensors that jobs may bring along, so that
/// batches find room in the other.
///
/// Ownership: borrows the pool; leases may outlive both.
/// Threads:   safe.
class JobMemoryShare {
 public:
  explicit JobMemoryShare(BufferPool& pool) : pool_(pool) {}

  /// Errors: UNAVAILABLE when the slabs of this lease and of earlier ones that are still held would
  /// take more than half of the budget, but never for want of that where there are no others; as
  /// BufferPool::Lease. What batches have leased does not count.
  absl::StatusOr<JobMemory> Lease(const JobMemoryBytes& bytes);

  /// Of the slabs that are held.
  int64_t brought_bytes() const { return brought_bytes_->load(); }

 private:
  /// Adds to brought_bytes_ within the limit.
  absl::Status Reserve(int64_t bytes);

  BufferPool& pool_;
  std::shared_ptr<std::atomic<int64_t>> brought_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace norm::server
