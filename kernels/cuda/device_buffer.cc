#include "norm/cuda/device_buffer.h"

#include <utility>

#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"

namespace norm::cuda {

Result<DeviceBuffer> DeviceBuffer::Allocate(size_t size_bytes, int device) {
  DeviceBuffer buffer;
  buffer.device_ = device;
  if (size_bytes == 0) return buffer;
  DeviceGuard guard(device);
  NORM_RETURN_IF_ERROR(guard.status());
  NORM_RETURN_IF_ERROR(ToStatus(cudaMalloc(&buffer.data_, size_bytes), "cudaMalloc"));
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::AllocateOn(StreamView stream, size_t size_bytes, int device) {
  DeviceBuffer buffer;
  buffer.device_ = device;
  if (size_bytes == 0) return buffer;
  DeviceGuard guard(device);
  NORM_RETURN_IF_ERROR(guard.status());
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaMallocAsync(&buffer.data_, size_bytes, stream.get()), "cudaMallocAsync"));
  buffer.size_bytes_ = size_bytes;
  buffer.stream_ = stream;
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      device_(other.device_),
      stream_(std::exchange(other.stream_, std::nullopt)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    (void)Close();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    device_ = other.device_;
    stream_ = std::exchange(other.stream_, std::nullopt);
  }
  return *this;
}

DeviceBuffer::~DeviceBuffer() { (void)Close(); }

Status DeviceBuffer::Close() {
  if (data_ == nullptr) return Status();
  DeviceGuard guard(device_);
  void* data = std::exchange(data_, nullptr);
  size_bytes_ = 0;
  if (stream_.has_value()) return ToStatus(cudaFreeAsync(data, stream_->get()), "cudaFreeAsync");
  return ToStatus(cudaFree(data), "cudaFree");
}

}  // namespace norm::cuda
