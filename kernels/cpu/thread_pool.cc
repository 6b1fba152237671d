#include "norm/kernels/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace norm {

class ThreadPool::Impl {
 public:
  explicit Impl(int threads) {
    workers_.reserve(threads > 1 ? static_cast<size_t>(threads) - 1 : 0);
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { WorkerLoop(); });
    }
  }

  ~Impl() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t count, const std::function<void(int64_t)>& task) {
    if (workers_.empty() || count <= 1) {
      for (int64_t i = 0; i < count; ++i) {
        task(i);
      }
      return;
    }
    std::lock_guard<std::mutex> one_call(run_mutex_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      busy_workers_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    RunIndices(count, task);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_workers_ == 0; });
    task_ = nullptr;
  }

 private:
  void RunIndices(int64_t count, const std::function<void(int64_t)>& task) {
    for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      task(i);
    }
  }

  void WorkerLoop() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) {
        return;
      }
      seen = generation_;
      const int64_t count = count_;
      const std::function<void(int64_t)>* task = task_;
      lock.unlock();
      RunIndices(count, *task);
      lock.lock();
      if (--busy_workers_ == 0) {
        done_.notify_one();
      }
    }
  }

  std::mutex run_mutex_;  // held for the length of a Run: calls are served one after another
  std::mutex mutex_;      // guards everything below except next_ and workers_
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int64_t)>* task_ = nullptr;  // valid while busy_workers_ > 0
  int64_t count_ = 0;
  int busy_workers_ = 0;  // workers that have not finished the current generation
  uint64_t generation_ = 0;
  bool stopping_ = false;
  std::atomic<int64_t> next_{0};      // published to the workers by mutex_ with the generation
  std::vector<std::thread> workers_;  // written by the constructor only
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
ThreadPool::~ThreadPool() = default;
int ThreadPool::threads() const { return impl_->threads(); }
void ThreadPool::Run(int64_t count, const std::function<void(int64_t)>& task) {
  impl_->Run(count, task);
}

}  // namespace norm
