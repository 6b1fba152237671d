// Memory that is expensive to allocate, kept in size classes under one budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace norm::server {

/// Allocates at least `bytes`, aligned to kSlabAlignment; freed with the last copy of the pointer.
/// RESOURCE_EXHAUSTED when the memory is not there.
using MemorySource = std::function<absl::StatusOr<std::shared_ptr<std::byte>>(int64_t bytes)>;

inline constexpr int64_t kSlabAlignment = 256;

/// Pageable host memory; slabs of 2 MiB and more on huge pages where the system has them.
MemorySource HostMemory();

struct PoolUsage {
  int64_t used_bytes = 0;   // of leased slabs
  int64_t free_bytes = 0;   // of slabs kept for the next lease
  int64_t allocations = 0;  // of the source, since the pool was made: leases that found no slab
};

/// Size of the slab that serves a request: powers of two from 4 KiB with three steps between, so at
/// most a quarter more than asked.
int64_t SlabBytes(int64_t bytes);

enum class LeaseMode : uint8_t {
  kAllocates,     // a new slab where none lies free, freeing others for it: may take milliseconds
  kFreeSlabOnly,  // for a thread that must not wait for the source
};

/// Hands out slabs and takes them back.
///
/// Bound:     slabs, leased and free, never take more than the budget. A lease that needs room
///            frees unused slabs of other sizes first.
/// Failure:   a source that refuses or throws leaves the pool as it was.
/// Release:   dropping the last copy of a lease is a lock-free push, on any thread; it frees
///            nothing while the pool lives. After the pool is gone, the last lease frees all.
/// Threads:   safe. Allocation happens outside the lock.
class BufferPool {
 public:
  /// Called with the usage after it changed, on the thread that leases or releases; must be cheap,
  /// and callable until the last lease is gone.
  using UsageListener = std::function<void(PoolUsage)>;

  BufferPool(MemorySource source, int64_t budget_bytes, UsageListener listener);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// A slab of SlabBytes(bytes), or of up to twice that when one lies free. Contents undefined.
  /// `slab_bytes`: set to the slab's size where there is a lease.
  ///
  /// Errors: RESOURCE_EXHAUSTED when `bytes` alone exceeds the budget, or the source refuses;
  ///         UNAVAILABLE when leased slabs leave no room now, or none lies free and `mode` wants one.
  absl::StatusOr<std::shared_ptr<std::byte>> Lease(int64_t bytes,
                                                   LeaseMode mode = LeaseMode::kAllocates,
                                                   int64_t* slab_bytes = nullptr);

  /// Allocates free slabs, so that `copies` leases at once of any one size up to `largest_bytes`,
  /// and a quarter more for what lies beside it, find one: the smallest first, up to half of the
  /// budget, or where the source stops.
  void Prewarm(int64_t largest_bytes, int copies);

  PoolUsage usage() const;
  int64_t budget_bytes() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace norm::server
