// Named ranges in a profiler's time line (NVTX).
#pragma once

namespace norm::cuda {

/// A range of this thread from construction to destruction, as `nsys` and other NVTX tools show it;
/// a few nanoseconds where none listens. `name` is read at once.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace norm::cuda
