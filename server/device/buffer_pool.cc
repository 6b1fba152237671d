#include "server/device/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

constexpr int kSmallestShift = 12;
constexpr int kStepsPerOctave = 4;
constexpr int kOctaves = 63 - kSmallestShift;
constexpr int kClassCount = kOctaves * kStepsPerOctave;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Leased slabs mostly wait for a socket to take a result: 64 MiB at 1 GB/s.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(64);

int64_t ClassBytes(int size_class) {
  const int64_t base = int64_t{1} << (kSmallestShift + size_class / kStepsPerOctave);
  return base + base / kStepsPerOctave * (size_class % kStepsPerOctave);
}

/// The smallest class of at least `bytes`.
int ClassOf(int64_t bytes) {
  if (bytes <= ClassBytes(0)) {
    return 0;
  }
  const int shift = 63 - std::countl_zero(static_cast<uint64_t>(bytes));
  const int64_t step = (int64_t{1} << shift) / kStepsPerOctave;
  const int64_t steps = (bytes - (int64_t{1} << shift) + step - 1) / step;
  return (shift - kSmallestShift) * kStepsPerOctave + static_cast<int>(steps);
}

std::shared_ptr<std::byte> AllocateSmall(int64_t bytes) {
  const int64_t rounded = (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  void* data = std::aligned_alloc(kSlabAlignment, static_cast<size_t>(rounded));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                    [](std::byte* memory) { std::free(memory); });
}

/// Pages of their own, which return to the system when freed, whatever lies around them; null when
/// it has none.
std::shared_ptr<std::byte> MapHugePages(int64_t bytes) {
  const auto alignment = static_cast<size_t>(kHugePageBytes);
  const size_t size = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  void* mapped =
      mmap(nullptr, size + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  auto* const start = static_cast<std::byte*>(mapped);
  const size_t head = (alignment - reinterpret_cast<uintptr_t>(start) % alignment) % alignment;
  if (head > 0) {
    munmap(start, head);
  }
  if (alignment > head) {
    munmap(start + head + size, alignment - head);
  }
  std::byte* const data = start + head;
  // Advice only: without huge pages the memory works all the same.
  (void)madvise(data, size, MADV_HUGEPAGE);
  return std::shared_ptr<std::byte>(data, [size](std::byte* memory) { munmap(memory, size); });
}

}  // namespace

MemorySource HostMemory() {
  return [](int64_t bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
    auto memory = bytes >= kHugePageBytes ? MapHugePages(bytes) : AllocateSmall(bytes);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no host memory for ", bytes, " bytes"));
    }
    return memory;
  };
}

int64_t SlabBytes(int64_t bytes) { return ClassBytes(ClassOf(bytes)); }

class BufferPool::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(MemorySource source, int64_t budget_bytes, UsageListener listener)
      : source_(std::move(source)), budget_bytes_(budget_bytes), listener_(std::move(listener)) {}

  ~Core() {
    std::lock_guard lock(mutex_);  // nobody else is left
    for (int c = 0; c < kClassCount; ++c) {
      CollectReturned(c);
    }
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Lease(int64_t bytes, LeaseMode mode,
                                                   int64_t* slab_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (bytes > budget_bytes_ || SlabBytes(bytes) > budget_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staging memory of ", bytes, " bytes (", SlabBytes(bytes),
                       " as a slab) exceeds the pool's ", budget_bytes_));
    }
    const int size_class = ClassOf(bytes);
    std::unique_ptr<Slab> slab;
    bool allocate = false;
    {
      SlabList evicted;  // freed after the lock
      std::lock_guard lock(mutex_);
      slab = TakeFree(size_class);
      if (slab == nullptr && mode == LeaseMode::kAllocates) {
        allocate = MakeRoom(ClassBytes(size_class), evicted);
      }
    }
    if (slab == nullptr && !allocate) {
      Notify();
      return WithRetryAfter(absl::UnavailableError(absl::StrCat(
                                "staging memory is in use: ", used_bytes_.load(), " of ",
                                budget_bytes_, " bytes, ", ClassBytes(size_class), " wanted")),
                            kRetryAfter);
    }
    if (allocate) {
      absl::Cleanup unreserve = [&] {
        total_bytes_.fetch_sub(ClassBytes(size_class));
        Notify();
      };
      slab = std::make_unique<Slab>();
      slab->size_class = size_class;
      auto memory = Allocate(ClassBytes(size_class));
      if (!memory.ok()) {
        return memory.status();
      }
      slab->memory = *std::move(memory);
      std::move(unreserve).Cancel();
    }
    if (slab_bytes != nullptr) {
      *slab_bytes = ClassBytes(slab->size_class);
    }
    used_bytes_.fetch_add(ClassBytes(slab->size_class));
    Notify();
    Slab* const leased = slab.release();
    return std::shared_ptr<std::byte>(
        leased->memory.get(), [](std::byte*) {},
        LeaseAllocator<std::byte>(shared_from_this(), leased));
  }

  PoolUsage usage() const {
    // Two loads: a slab may be released and freed in between.
    const int64_t used = used_bytes_.load();
    return {used, std::max<int64_t>(0, total_bytes_.load() - used), allocations_.load()};
  }
  int64_t budget_bytes() const { return budget_bytes_; }

 private:
  struct Slab {
    std::shared_ptr<std::byte> memory;
    int size_class = 0;
    Slab* next = nullptr;
    // Holds the control block of the lease: leasing a free slab allocates nothing.
    alignas(std::max_align_t) std::array<std::byte, 96> control_block;
  };

  /// Owns the slabs in it. Linked through them: nothing here allocates, and so nothing throws.
  class SlabList {
   public:
    SlabList() = default;
    ~SlabList() {
      while (Pop() != nullptr) {
      }
    }
    SlabList(const SlabList&) = delete;
    SlabList& operator=(const SlabList&) = delete;

    bool empty() const { return head_ == nullptr; }
    void Push(std::unique_ptr<Slab> slab) {
      slab->next = head_;
      head_ = slab.release();
    }
    std::unique_ptr<Slab> Pop() {
      std::unique_ptr<Slab> slab(head_);
      if (slab != nullptr) {
        head_ = slab->next;
      }
      return slab;
    }

   private:
    Slab* head_ = nullptr;
  };

  /// Places a lease's control block in its slab and, when the block is no longer used either, gives
  /// the slab back.
  template <typename T>
  struct LeaseAllocator {
    using value_type = T;

    LeaseAllocator(std::shared_ptr<Core> owning_core, Slab* leased)
        : core(std::move(owning_core)), slab(leased) {}
    template <typename U>
    LeaseAllocator(const LeaseAllocator<U>& other) : core(other.core), slab(other.slab) {}

    T* allocate(size_t) {
      static_assert(sizeof(T) <= sizeof(Slab::control_block));
      return reinterpret_cast<T*>(slab->control_block.data());
    }
    void deallocate(T*, size_t) { core->Release(slab); }
    template <typename U>
    friend bool operator==(const LeaseAllocator& a, const LeaseAllocator<U>& b) {
      return a.slab == b.slab;
    }

    std::shared_ptr<Core> core;
    Slab* slab;
  };

  void Release(Slab* slab) {
    used_bytes_.fetch_sub(ClassBytes(slab->size_class));
    // Pushed here, taken only all at once: no ABA.
    std::atomic<Slab*>& head = returned_[static_cast<size_t>(slab->size_class)];
    slab->next = head.load(std::memory_order_relaxed);
    while (!head.compare_exchange_weak(slab->next, slab, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
    Notify();
  }

  void CollectReturned(int size_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto i = static_cast<size_t>(size_class);
    Slab* slab = returned_[i].exchange(nullptr, std::memory_order_acquire);
    while (slab != nullptr) {
      free_[i].Push(std::unique_ptr<Slab>(std::exchange(slab, slab->next)));
    }
  }

  std::unique_ptr<Slab> TakeFree(int size_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int last = std::min(size_class + kStepsPerOctave, kClassCount - 1);
    for (int c = size_class; c <= last; ++c) {
      SlabList& free = free_[static_cast<size_t>(c)];
      if (free.empty()) {
        CollectReturned(c);
      }
      if (!free.empty()) {
        return free.Pop();
      }
    }
    return nullptr;
  }

  /// Moves a free slab of the class to `evicted`.
  void Evict(int size_class, SlabList& evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    evicted.Push(free_[static_cast<size_t>(size_class)].Pop());
    total_bytes_.fetch_sub(ClassBytes(size_class));
  }

  /// Reserves `bytes` of the budget, moving free slabs, the largest first, to `evicted` for it.
  bool MakeRoom(int64_t bytes, SlabList& evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // What is leased leaves no room: nothing is evicted in vain.
    if (used_bytes_.load() + bytes > budget_bytes_) return false;
    for (int c = kClassCount - 1; c >= 0 && total_bytes_.load() + bytes > budget_bytes_; --c) {
      CollectReturned(c);
      while (!free_[static_cast<size_t>(c)].empty() &&
             total_bytes_.load() + bytes > budget_bytes_) {
        Evict(c, evicted);
      }
    }
    if (total_bytes_.load() + bytes > budget_bytes_) {
      return false;
    }
    total_bytes_.fetch_add(bytes);
    return true;
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    allocations_.fetch_add(1);
    auto memory = source_(bytes);
    if (memory.ok()) {
      return memory;
    }
    // The source has less than the budget says: what lies free here may be what it lacks.
    bool any = false;
    {
      SlabList evicted;  // freed after the lock
      std::lock_guard lock(mutex_);
      for (int c = 0; c < kClassCount; ++c) {
        CollectReturned(c);
        while (!free_[static_cast<size_t>(c)].empty()) {
          Evict(c, evicted);
          any = true;
        }
      }
    }
    return any ? source_(bytes) : std::move(memory);
  }

  void Notify() const {
    if (listener_) {
      listener_(usage());
    }
  }

  const MemorySource source_;
  const int64_t budget_bytes_;
  const UsageListener listener_;
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> total_bytes_{0};  // leased and free; raised only with mutex_ held
  std::atomic<int64_t> allocations_{0};
  std::array<std::atomic<Slab*>, kClassCount> returned_{};
  std::mutex mutex_;
  std::array<SlabList, kClassCount> free_ ABSL_GUARDED_BY(mutex_);
};

BufferPool::BufferPool(MemorySource source, int64_t budget_bytes, UsageListener listener)
    : core_(std::make_shared<Core>(std::move(source), budget_bytes, std::move(listener))) {}

BufferPool::~BufferPool() = default;

absl::StatusOr<std::shared_ptr<std::byte>> BufferPool::Lease(int64_t bytes, LeaseMode mode,
                                                             int64_t* slab_bytes) {
  return core_->Lease(bytes, mode, slab_bytes);
}

void BufferPool::Prewarm(int64_t largest_bytes, int copies) {
  std::vector<std::shared_ptr<std::byte>> held;
  int64_t left_bytes = budget_bytes() / 2;
  // A slab serves leases of more than half of it, and most tensors are a power of two, with some
  // parameters beside it: slabs of a quarter more than each power of two serve every size.
  int64_t bytes = 0;
  for (int size_class = 1; bytes < largest_bytes + largest_bytes / 4;
       size_class += kStepsPerOctave) {
    bytes = ClassBytes(size_class);
    for (int i = 0; i < copies; ++i) {
      left_bytes -= bytes;
      auto lease = left_bytes < 0 ? absl::UnavailableError("half of the budget") : Lease(bytes);
      if (!lease.ok()) {
        return;
      }
      held.push_back(*std::move(lease));
    }
  }
}

PoolUsage BufferPool::usage() const { return core_->usage(); }
int64_t BufferPool::budget_bytes() const { return core_->budget_bytes(); }

}  // namespace norm::server
