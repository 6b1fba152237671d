#include "norm/cuda/stream.h"

#include <utility>

#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"
#include "norm/cuda/event.h"

namespace norm::cuda {

Status StreamView::Synchronize() const {
  return ToStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Result<bool> StreamView::IsIdle() const {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) return false;
  NORM_RETURN_IF_ERROR(ToStatus(error, "cudaStreamQuery"));
  return true;
}

Status StreamView::WaitFor(const Event& event) const {
  return ToStatus(cudaStreamWaitEvent(stream_, event.get(), cudaEventWaitDefault),
                  "cudaStreamWaitEvent");
}

Result<Stream> Stream::Create(int device, StreamPriority priority) {
  DeviceGuard guard(device);
  NORM_RETURN_IF_ERROR(guard.status());
  int least = 0;
  int greatest = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == StreamPriority::kHigh ? greatest : least),
               "cudaStreamCreateWithPriority"));
  return Stream(stream, device);
}

Stream::Stream(Stream&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)), device_(other.device_) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    (void)Close();
    stream_ = std::exchange(other.stream_, nullptr);
    device_ = other.device_;
  }
  return *this;
}

Stream::~Stream() { (void)Close(); }

Status Stream::Close() {
  if (stream_ == nullptr) return Status();
  DeviceGuard guard(device_);
  return ToStatus(cudaStreamDestroy(std::exchange(stream_, nullptr)), "cudaStreamDestroy");
}

}  // namespace norm::cuda
