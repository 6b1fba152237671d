// A CUDA event.
#pragma once

#include <cuda_runtime_api.h>

#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"

namespace norm::cuda {

enum class EventTiming { kDisabled, kEnabled };

/// Owns an event. A moved-from Event is closed. Never records on its own; Close() or the destructor
/// destroys it.
class Event {
 public:
  static Result<Event> Create(int device, EventTiming timing = EventTiming::kDisabled);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cudaEvent_t get() const { return event_; }
  int device() const { return device_; }

  /// Marks the work enqueued on `stream` so far; replaces an earlier record.
  Status Record(StreamView stream);
  /// Whether the recorded work is done (true when nothing was recorded); never blocks. Reports
  /// errors of that work.
  Result<bool> IsDone() const;
  /// Blocks this thread until the recorded work is done.
  Status Synchronize() const;
  /// Idempotent.
  Status Close();

 private:
  Event(cudaEvent_t event, int device) : event_(event), device_(device) {}
  cudaEvent_t event_ = nullptr;
  int device_ = -1;
};

/// Milliseconds between two recorded, completed events made with EventTiming::kEnabled.
Result<float> ElapsedMs(const Event& start, const Event& end);

}  // namespace norm::cuda
