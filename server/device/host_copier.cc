#include "server/device/host_copier.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace norm::server {
namespace {

// Smaller gathers are over before a helper wakes.
constexpr int64_t kMinSharedBytes = int64_t{512} << 10;

#if defined(__SSE2__)
/// Past the caches: what only a device reads need not be in them, and the lines that are written
/// need not be read first. A third faster than memcpy, by any number of threads (16-core Xeon).
void StreamingCopy(std::byte* to, const std::byte* from, size_t size) {
  constexpr size_t kVector = sizeof(__m128i);
  constexpr size_t kLine = 4 * kVector;
  const size_t head = std::min(size, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= size; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i line[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                            _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(target + i, line[i]);
    }
  }
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();
}
#else
void StreamingCopy(std::byte* to, const std::byte* from, size_t size) {
  std::memcpy(to, from, size);
}
#endif

}  // namespace

HostCopier::HostCopier(int helpers) {
  for (int i = 0; i < helpers; ++i) {
    helpers_.emplace_back([this] { RunHelper(); });
  }
}

HostCopier::~HostCopier() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_tasks_.notify_all();
  for (std::thread& helper : helpers_) {
    helper.join();
  }
}

void HostCopier::Gather(const GatherPlan& plan, std::byte* slab,
                        absl::FunctionRef<void(size_t)> chunk_done) {
  copied_bytes_.fetch_add(plan.gathered_bytes, std::memory_order_relaxed);
  if (!helpers_.empty() && plan.gathered_bytes >= kMinSharedBytes) {
    GatherTogether(plan, slab, chunk_done);
    return;
  }
  const auto copy = [large = plan.gathered_bytes >= kMinSharedBytes](
                        std::byte* to, const std::byte* from, size_t size) {
    large ? StreamingCopy(to, from, size) : static_cast<void>(std::memcpy(to, from, size));
  };
  for (size_t chunk = 0; chunk < plan.chunk_ends.size(); ++chunk) {
    for (const CopyPiece& piece : plan.ChunkPieces(chunk)) {
      if (!piece.direct) {
        copy(slab + piece.to, piece.from.data(), piece.from.size());
      }
    }
    chunk_done(chunk);
  }
}

void HostCopier::GatherTogether(const GatherPlan& plan, std::byte* slab,
                                absl::FunctionRef<void(size_t)> chunk_done) {
  Task task;
  task.plan = &plan;
  task.slab = slab;
  for (size_t chunk = 0; chunk < plan.chunk_ends.size(); ++chunk) {
    task.pieces_left[chunk].store(static_cast<int64_t>(plan.ChunkPieces(chunk).size()),
                                  std::memory_order_relaxed);
  }
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(&task);
  }
  has_tasks_.notify_all();
  for (size_t chunk = 0; chunk < plan.chunk_ends.size(); ++chunk) {
    std::atomic<int64_t>& left = task.pieces_left[chunk];
    for (int64_t pieces = left.load(std::memory_order_acquire); pieces > 0;
         pieces = left.load(std::memory_order_acquire)) {
      if (!CopyNext(task)) {
        left.wait(pieces, std::memory_order_acquire);
      }
    }
    chunk_done(chunk);
  }
  std::unique_lock lock(mutex_);
  tasks_.erase(std::remove(tasks_.begin(), tasks_.end(), &task), tasks_.end());
  helper_left_.wait(lock, [&] { return task.helpers == 0; });
}

bool HostCopier::CopyNext(Task& task) {
  const size_t i = task.next_piece.fetch_add(1, std::memory_order_relaxed);
  if (i >= task.plan->pieces.size()) {
    return false;
  }
  const CopyPiece& piece = task.plan->pieces[i];
  if (!piece.direct) {
    StreamingCopy(task.slab + piece.to, piece.from.data(), piece.from.size());
  }
  std::atomic<int64_t>& left = task.pieces_left[static_cast<size_t>(piece.chunk)];
  left.fetch_sub(1, std::memory_order_acq_rel);
  left.notify_all();
  return true;
}

void HostCopier::RunHelper() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_tasks_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) {
      return;
    }
    Task& task = *tasks_.front();
    ++task.helpers;
    lock.unlock();
    while (CopyNext(task)) {
    }
    lock.lock();
    // Nothing is left to take: no helper need look at it again.
    tasks_.erase(std::remove(tasks_.begin(), tasks_.end(), &task), tasks_.end());
    if (--task.helpers == 0) {
      helper_left_.notify_all();
    }
  }
}

}  // namespace norm::server
