// Copies between host buffers, large ones by several threads.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "server/device/gather_plan.h"

namespace norm::server {

/// Threads that help whoever gathers a batch.
///
/// Threads:   safe; several gathers may run at once and share the helpers.
/// Ownership: joins its threads on destruction.
class HostCopier {
 public:
  /// With no helpers each gather is the work of its own thread.
  explicit HostCopier(int helpers);
  ~HostCopier();
  HostCopier(const HostCopier&) = delete;
  HostCopier& operator=(const HostCopier&) = delete;

  /// Copies every piece of the plan that is not direct to its place in `slab`, and calls
  /// `chunk_done` for each chunk in order, on this thread, as soon as it is complete; later chunks
  /// are copied meanwhile. Returns when all is copied and called.
  void Gather(const GatherPlan& plan, std::byte* slab, absl::FunctionRef<void(size_t)> chunk_done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  /// Bytes copied since construction.
  int64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  /// A gather that helpers take part in. Its owner's, on the owner's stack.
  struct Task {
    const GatherPlan* plan = nullptr;
    std::byte* slab = nullptr;
    std::atomic<size_t> next_piece{0};
    std::array<std::atomic<int64_t>, kMaxGatherChunks> pieces_left;  // by chunk
    int helpers = 0;  // guarded by mutex_: helpers that may touch this task
  };

  /// Copies the next piece that nobody has taken; false when there is none.
  static bool CopyNext(Task& task);
  void GatherTogether(const GatherPlan& plan, std::byte* slab,
                      absl::FunctionRef<void(size_t)> chunk_done) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunHelper() ABSL_LOCKS_EXCLUDED(mutex_);

  std::atomic<int64_t> copied_bytes_{0};
  std::mutex mutex_;
  std::condition_variable has_tasks_;    // tasks_ or stopping_
  std::condition_variable helper_left_;  // a task's `helpers`
  std::deque<Task*> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace norm::server
