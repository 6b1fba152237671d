// Threads for the CPU implementations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace norm {

/// A fixed set of threads that run index ranges. The calling thread takes part.
///
/// Threads:     Run may be called from several threads at once; calls are served one after another.
/// Ownership:   joins its threads on destruction.
class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls task(i) once for each i in [0, count), in no particular order, and returns when all are
  /// done. Which thread runs which index is not defined: results must not depend on it.
  void Run(int64_t count, const std::function<void(int64_t)>& task);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace norm
