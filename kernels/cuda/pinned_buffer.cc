#include "norm/cuda/pinned_buffer.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "norm/cuda/cuda_status.h"

namespace norm::cuda {

Result<PinnedBuffer> PinnedBuffer::Allocate(size_t size_bytes, PinnedMapping mapping) {
  PinnedBuffer buffer;
  buffer.mapping_ = mapping;
  if (size_bytes == 0) return buffer;
  const unsigned flags =
      cudaHostAllocPortable | (mapping == PinnedMapping::kMapped ? cudaHostAllocMapped : 0U);
  NORM_RETURN_IF_ERROR(ToStatus(cudaHostAlloc(&buffer.data_, size_bytes, flags), "cudaHostAlloc"));
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapping_(other.mapping_) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this != &other) {
    (void)Close();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    mapping_ = other.mapping_;
  }
  return *this;
}

PinnedBuffer::~PinnedBuffer() { (void)Close(); }

Result<void*> PinnedBuffer::device_data() const {
  if (mapping_ != PinnedMapping::kMapped) {
    return Status(StatusCode::kUnsupported, "the pinned buffer was not allocated as mapped");
  }
  void* device_pointer = nullptr;
  if (data_ == nullptr) return device_pointer;
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaHostGetDevicePointer(&device_pointer, data_, 0), "cudaHostGetDevicePointer"));
  return device_pointer;
}

Status PinnedBuffer::Close() {
  if (data_ == nullptr) return Status();
  size_bytes_ = 0;
  return ToStatus(cudaFreeHost(std::exchange(data_, nullptr)), "cudaFreeHost");
}

}  // namespace norm::cuda
