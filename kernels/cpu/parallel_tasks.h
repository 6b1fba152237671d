// When a CPU computation is worth more than one thread.
#pragma once

#include <cstdint>

#include "norm/kernels/thread_pool.h"

namespace norm::internal {

/// Below this many bytes of tensors, waking threads costs more than it saves (about 10 us at 10
/// GB/s).
inline constexpr int64_t kMinParallelBytes = 64 << 10;

/// Elements that one task handles, where the task size is free to choose.
inline constexpr int64_t kTaskElements = 16 << 10;

/// Calls task(i) for each i in [0, count), on the pool's threads if `bytes` is worth it. Allocates
/// nothing: the callable is passed by address.
template <typename Task>
void RunTasks(ThreadPool& threads, int64_t bytes, int64_t count, const Task& task) {
  if (bytes < kMinParallelBytes || count <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      task(i);
    }
    return;
  }
  const Task* address = &task;
  threads.Run(count, [address](int64_t i) { (*address)(i); });
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace norm::internal
