// How long the next free slot is likely to take, from what recent batches took.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace norm::server {

/// Exponentially weighted means over batches. Not thread-safe.
class ServiceEstimate {
 public:
  void AddBatch(absl::Duration service, int64_t jobs);

  /// When a queue of this length over this many slots will have moved up by one, between 1 ms and
  /// 10 s: what a refused caller is told to wait.
  absl::Duration RetryAfter(int64_t queued_jobs, int slots) const;

 private:
  absl::Duration mean_service_;
  double mean_jobs_ = 1.0;
};

}  // namespace norm::server
