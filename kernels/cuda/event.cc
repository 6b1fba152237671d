#include "norm/cuda/event.h"

#include <utility>

#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"

namespace norm::cuda {

Result<Event> Event::Create(int device, EventTiming timing) {
  DeviceGuard guard(device);
  NORM_RETURN_IF_ERROR(guard.status());
  cudaEvent_t event = nullptr;
  NORM_RETURN_IF_ERROR(ToStatus(
      cudaEventCreateWithFlags(
          &event, timing == EventTiming::kEnabled ? cudaEventDefault : cudaEventDisableTiming),
      "cudaEventCreateWithFlags"));
  return Event(event, device);
}

Event::Event(Event&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), device_(other.device_) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    (void)Close();
    event_ = std::exchange(other.event_, nullptr);
    device_ = other.device_;
  }
  return *this;
}

Event::~Event() { (void)Close(); }

Status Event::Record(StreamView stream) {
  return ToStatus(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

Result<bool> Event::IsDone() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  NORM_RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
  return true;
}

Status Event::Synchronize() const {
  return ToStatus(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

Status Event::Close() {
  if (event_ == nullptr) return Status();
  DeviceGuard guard(device_);
  return ToStatus(cudaEventDestroy(std::exchange(event_, nullptr)), "cudaEventDestroy");
}

Result<float> ElapsedMs(const Event& start, const Event& end) {
  float elapsed_ms = 0.0F;
  NORM_RETURN_IF_ERROR(
      ToStatus(cudaEventElapsedTime(&elapsed_ms, start.get(), end.get()), "cudaEventElapsedTime"));
  return elapsed_ms;
}

}  // namespace norm::cuda
