// Lets batches wait for memory that others in flight hold.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace norm::server {

/// Who holds memory of a pool, and who waits for it.
///
/// Threads:   safe. No lock is held over `lease` but the turn of those that wait: who has what it
///            needs does not stand behind another's slow call of a driver.
/// Ownership: outlives its holds.
class MemoryWaitlist {
 public:
  /// Memory that will be given back without waiting for any. Ends with the hold: give it back first.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept : list_(std::exchange(other.list_, nullptr)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(list_, other.list_);
      return *this;
    }
    ~Hold() { Reset(); }

    void Reset();

   private:
    friend class MemoryWaitlist;
    explicit Hold(MemoryWaitlist* list) : list_(list) {}
    MemoryWaitlist* list_ = nullptr;
  };

  /// Calls `lease`, which takes all that a batch needs or, with an error or exception, nothing:
  /// a part of it could be what another waits for. With `may_wait` it is called again after
  /// UNAVAILABLE, whenever others have given memory back, and those that wait are not overtaken.
  ///
  /// Errors: those of `lease`; UNAVAILABLE only when nobody holds any memory, or without `may_wait`.
  absl::StatusOr<Hold> Lease(absl::FunctionRef<absl::Status()> lease, bool may_wait)
      ABSL_LOCKS_EXCLUDED(turn_, mutex_);

  /// How many wait.
  int64_t waiting() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Hold> WaitAndLease(absl::FunctionRef<absl::Status()> lease)
      ABSL_LOCKS_EXCLUDED(turn_, mutex_);
  Hold BeginHolding() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndHolding() ABSL_LOCKS_EXCLUDED(mutex_);
  void AddWaiting(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t releases() ABSL_LOCKS_EXCLUDED(mutex_);

  std::mutex turn_ ABSL_ACQUIRED_BEFORE(mutex_);  // of the one that waits and tries again
  std::mutex mutex_;
  std::condition_variable released_;
  int64_t holders_ ABSL_GUARDED_BY(mutex_) = 0;   // may hold memory
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;  // how often one has ended
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;   // for the turn or in it
};

}  // namespace norm::server
