// How long queued work is likely to take, from what recent batches took.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace norm::server {

/// Fits service time = base + slope * cost over batches, old ones fading. Not thread-safe.
class ServiceEstimate {
 public:
  /// A batch of this cost (JobQueue::Cost of its jobs) took `service` in its slot.
  void AddBatch(absl::Duration service, int64_t cost);

  /// Whether enough batches have been seen to refuse work for.
  bool known() const { return batches_ >= kKnownAfter; }

  /// Time that launches of this cost in all take one after the other; zero before the first batch.
  absl::Duration Service(double launches, double cost) const;

  /// What work of this cost adds to them, its part of each launch included, on so many busy slots.
  absl::Duration Share(int64_t cost, int slots) const;

  /// When a queue of this size over this many busy slots will have moved up by one, between 1 ms
  /// and 10 s: what a refused caller waits at least.
  absl::Duration RetryAfter(int64_t launches, int64_t cost, int slots) const;

 private:
  static constexpr int kKnownAfter = 16;

  int batches_ = 0;
  // Means over batches, seconds and cost.
  double service_ = 0;
  double cost_ = 0;
  double cost_squared_ = 0;
  double cost_service_ = 0;
};

}  // namespace norm::server
