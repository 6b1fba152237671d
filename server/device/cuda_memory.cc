#include "server/device/cuda_memory.h"

#include <utility>

#include "norm/cuda/device_buffer.h"
#include "norm/cuda/pinned_buffer.h"
#include "server/device/kernel_status.h"

namespace norm::server {
namespace {

/// The memory of `buffer`, which lives as long as any copy of the pointer.
template <typename Buffer>
absl::StatusOr<std::shared_ptr<std::byte>> Share(Result<Buffer> buffer) {
  if (!buffer.ok()) {
    return ToAbslStatus(buffer.status());
  }
  auto owner = std::make_shared<Buffer>(std::move(buffer).value());
  return std::shared_ptr<std::byte>(owner, static_cast<std::byte*>(owner->data()));
}

}  // namespace

MemorySource PinnedMemory() {
  return [](int64_t bytes) {
    return Share(
        cuda::PinnedBuffer::Allocate(static_cast<size_t>(bytes), cuda::PinnedMapping::kMapped));
  };
}

MemorySource DeviceMemory(int device) {
  return [device](int64_t bytes) {
    return Share(cuda::DeviceBuffer::Allocate(static_cast<size_t>(bytes), device));
  };
}

}  // namespace norm::server
