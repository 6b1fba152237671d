// Carves a workspace into aligned parts; the same code sizes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "norm/kernels/workspace.h"

namespace norm::internal {

/// Parts are handed out in order, each at a multiple of kWorkspaceAlignment. With a null base only
/// the size is counted.
class WorkspaceLayout {
 public:
  explicit WorkspaceLayout(void* base) : base_(static_cast<std::byte*>(base)) {}

  /// Null for zero elements and when only counting.
  template <typename T>
  T* Take(int64_t elements) {
    return static_cast<T*>(TakeBytes(static_cast<size_t>(elements) * sizeof(T)));
  }

  void* TakeBytes(size_t bytes) {
    if (bytes == 0) return nullptr;
    void* part = base_ == nullptr ? nullptr : base_ + size_bytes_;
    size_bytes_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return part;
  }

  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* base_;
  size_t size_bytes_ = 0;
};

}  // namespace norm::internal
