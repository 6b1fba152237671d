// A lock for a mutex that is held for a few microseconds, but for rare times.
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace norm::server {

/// Tries for some tens of microseconds before it sleeps. Eight threads that submit 50,000 small
/// requests a second were asleep for half of the time, 100 us a time, for a mutex that was held for
/// two (H200 machine, 16 cores): a sleeper needs that long to come back, and the next one finds the
/// mutex taken again.
class ABSL_SCOPED_LOCKABLE BriefLock {
 public:
  explicit BriefLock(std::mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    for (int tries = 0; tries < kTries; ++tries) {
      if (mutex_.try_lock()) return;
      // Longer each time: who tries takes the cache line from the one that holds the mutex.
      for (int i = 0; i < (kPauses << (tries < kDoublings ? tries : kDoublings)); ++i) Pause();
    }
    mutex_.lock();
  }
  ~BriefLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  BriefLock(const BriefLock&) = delete;
  BriefLock& operator=(const BriefLock&) = delete;

 private:
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");
#endif
  }

  static constexpr int kTries = 20;
  static constexpr int kPauses = 4;
  static constexpr int kDoublings = 4;

  std::mutex& mutex_;
};

}  // namespace norm::server
