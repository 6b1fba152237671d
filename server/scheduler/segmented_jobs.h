// A batch while it is put together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/batch_executor.h"
#include "server/scheduler/batch_key.h"

namespace norm::server {

/// The jobs of a batch on their way in, segment by segment.
class SegmentedJobs {
 public:
  /// The segment that a job with these keys belongs to, or count() when it starts one.
  size_t Find(const std::optional<SegmentKey>& key) const {
    if (!key.has_value()) {
      return count();
    }
    const auto found = index_.find(*key);
    return found == index_.end() ? count() : found->second;
  }
  void Add(size_t segment, std::optional<SegmentKey> key, std::unique_ptr<Job> job) {
    if (segment == count()) {
      segments_.emplace_back();
      if (key.has_value()) {
        index_.emplace(*std::move(key), segment);
      }
    }
    segments_[segment].push_back(std::move(job));
  }
  size_t count() const { return segments_.size(); }

  void MoveTo(Batch& batch) {
    for (auto& segment : segments_) {
      batch.segment_jobs.push_back(static_cast<int64_t>(segment.size()));
      std::move(segment.begin(), segment.end(), std::back_inserter(batch.jobs));
    }
  }

 private:
  std::vector<std::vector<std::unique_ptr<Job>>> segments_;
  absl::flat_hash_map<SegmentKey, size_t> index_;
};

}  // namespace norm::server
