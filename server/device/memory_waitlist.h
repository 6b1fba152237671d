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
/// Order:     those that wait try again one at a time, first come, first served, when memory was given
///            back; newcomers do not overtake them.
/// Threads:   safe. No lock is held over `lease`, and while one that waited calls it, newcomers may
///            call theirs: nobody stands behind another's slow call of a driver.
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
  /// UNAVAILABLE.
  ///
  /// Errors: those of `lease`; UNAVAILABLE only when nobody holds any memory, or without `may_wait`.
  absl::StatusOr<Hold> Lease(absl::FunctionRef<absl::Status()> lease, bool may_wait)
      ABSL_LOCKS_EXCLUDED(mutex_);

  /// How many wait.
  int64_t waiting() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Hold BeginHolding() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndHolding() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayTryAtOnce() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitTurn() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndTurn() ABSL_LOCKS_EXCLUDED(mutex_);
  /// `releases_`, before memory is looked for: what is given back meanwhile is tried for again.
  int64_t BeginTry() ABSL_LOCKS_EXCLUDED(mutex_);
  /// True once there were more `releases`; false when nobody is left to make one.
  bool AwaitRelease(int64_t releases) ABSL_LOCKS_EXCLUDED(mutex_);

  std::mutex mutex_;
  std::condition_variable changed_;               // releases_ or turn_
  int64_t holders_ ABSL_GUARDED_BY(mutex_) = 0;   // may hold memory
  int64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;  // how often one has ended
  // Of those that wait, each with a number of its own from turn_ on.
  int64_t next_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  bool trying_ ABSL_GUARDED_BY(mutex_) = false;  // the one whose turn it is calls its `lease`
};

}  // namespace norm::server
