// Page-locked host memory.
#pragma once

#include <cstddef>

#include "norm/kernels/result.h"

namespace norm::cuda {

/// kMapped memory can be read and written by kernels through device_data().
enum class PinnedMapping { kUnmapped, kMapped };

/// Owns page-locked host memory, pinned for every device of the process (portable), page aligned,
/// contents undefined. Zero bytes own nothing. A moved-from buffer is closed. Allocating takes
/// milliseconds (64 MiB: tens of them): for pools.
///
/// Ownership:  Close() or the destructor frees it; no work that uses it may be in flight then.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> Allocate(size_t size_bytes,
                                       PinnedMapping mapping = PinnedMapping::kUnmapped);

  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size_bytes() const { return size_bytes_; }
  /// The address kernels of the current device use. kUnsupported unless the memory was mapped.
  Result<void*> device_data() const;
  /// Idempotent.
  Status Close();

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  PinnedMapping mapping_ = PinnedMapping::kUnmapped;
};

}  // namespace norm::cuda
