// Device memory.
#pragma once

#include <cstddef>
#include <optional>

#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"

namespace norm::cuda {

/// Owns device memory, aligned to 256 bytes or more, contents undefined. Zero bytes own nothing and
/// data() is null. A moved-from buffer is closed.
///
/// Ownership:  Close() or the destructor frees on the buffer's device: a plain buffer after all
/// work of the device that
///             was enqueued before (the driver waits), a stream-ordered one on its stream, which
///             must outlive the buffer.
class DeviceBuffer {
 public:
  /// Plain memory; the call may synchronize the device. For pools, made at start.
  static Result<DeviceBuffer> Allocate(size_t size_bytes, int device);
  /// Stream-ordered: usable by work enqueued on `stream` afterwards. `device` is the stream's.
  static Result<DeviceBuffer> AllocateOn(StreamView stream, size_t size_bytes, int device);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  int device() const { return device_; }
  /// Idempotent.
  Status Close();

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  int device_ = -1;
  std::optional<StreamView> stream_;
};

}  // namespace norm::cuda
