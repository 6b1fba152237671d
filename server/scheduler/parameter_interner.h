// Gives equal parameter bytes one identity: grouping jobs by their weights compares pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "server/scheduler/job.h"

namespace norm::server {

/// A copy of the parameters of one or more jobs: the tensors in TensorRole order, end to end.
struct ParameterSet {
  uint64_t hash = 0;
  std::string bytes;
};

/// Depends on the bytes alone, not on where one run ends and the next begins.
uint64_t HashRuns(const std::vector<absl::Span<const std::byte>>& runs);

/// Set of the parameter contents that queued jobs hold.
///
/// Two results alive at once are the same pointer exactly when their bytes are equal: a hash finds
/// candidates, a full compare decides. Contents are dropped when their last holder lets go.
///
/// Threads: safe; bytes are hashed, compared and copied outside the lock.
class ParameterInterner {
 public:
  using HashFunction = uint64_t (*)(const std::vector<absl::Span<const std::byte>>&);

  explicit ParameterInterner(HashFunction hash = &HashRuns) : hash_(hash) {}
  ParameterInterner(const ParameterInterner&) = delete;
  ParameterInterner& operator=(const ParameterInterner&) = delete;

  /// Null when the job has no parameters.
  std::shared_ptr<const ParameterSet> Intern(const Job& job) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Contents held by someone now.
  int64_t LiveCount() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Candidates = std::vector<std::shared_ptr<const ParameterSet>>;

  Candidates Find(uint64_t hash) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HashFunction hash_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, std::vector<std::weak_ptr<const ParameterSet>>> contents_
      ABSL_GUARDED_BY(mutex_);
  // Expired entries are swept when this many have been added since the last sweep.
  int64_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace norm::server
