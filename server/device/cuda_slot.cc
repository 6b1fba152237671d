#include "server/device/cuda_slot.h"

#include <utility>
#include <vector>

#include "norm/cuda/copy.h"

namespace norm::server {
namespace {

/// Sets `elapsed` to the time between two completed events.
Status Measure(const cuda::Event& from, const cuda::Event& to, absl::Duration& elapsed) {
  const Result<float> milliseconds = cuda::ElapsedMs(from, to);
  NORM_RETURN_IF_ERROR(milliseconds.status());
  elapsed = absl::Milliseconds(static_cast<double>(milliseconds.value()));
  return Status();
}

}  // namespace

CudaSlot::CudaSlot(cuda::Stream copy_in, cuda::Stream compute, cuda::Stream copy_out,
                   cuda::Event start, cuda::Event copied_in, cuda::Event computing,
                   cuda::Event computed, cuda::Event end)
    : copy_in_(std::move(copy_in)),
      compute_(std::move(compute)),
      copy_out_(std::move(copy_out)),
      start_(std::move(start)),
      copied_in_(std::move(copied_in)),
      computing_(std::move(computing)),
      computed_(std::move(computed)),
      end_(std::move(end)) {}

Result<CudaSlot> CudaSlot::Create(int device) {
  std::vector<cuda::Stream> streams;
  for (int i = 0; i < 3; ++i) {
    Result<cuda::Stream> stream = cuda::Stream::Create(device);
    NORM_RETURN_IF_ERROR(stream.status());
    streams.push_back(std::move(stream).value());
  }
  std::vector<cuda::Event> events;
  for (int i = 0; i < 5; ++i) {
    Result<cuda::Event> event = cuda::Event::Create(device, cuda::EventTiming::kEnabled);
    NORM_RETURN_IF_ERROR(event.status());
    events.push_back(std::move(event).value());
  }
  return CudaSlot(std::move(streams[0]), std::move(streams[1]), std::move(streams[2]),
                  std::move(events[0]), std::move(events[1]), std::move(events[2]),
                  std::move(events[3]), std::move(events[4]));
}

Status CudaSlot::BeginCopyIn() { return start_.Record(copy_in_.view()); }

Status CudaSlot::CopyIn(void* device_memory, const void* pinned, size_t size_bytes) {
  return cuda::CopyAsync(device_memory, pinned, size_bytes, copy_in_.view());
}

Status CudaSlot::BeginCompute() {
  NORM_RETURN_IF_ERROR(copied_in_.Record(copy_in_.view()));
  NORM_RETURN_IF_ERROR(compute_.view().WaitFor(copied_in_));
  return computing_.Record(compute_.view());
}

Status CudaSlot::BeginCopyOut() {
  NORM_RETURN_IF_ERROR(computed_.Record(compute_.view()));
  return copy_out_.view().WaitFor(computed_);
}

Status CudaSlot::CopyOut(void* pinned, const void* device_memory, size_t size_bytes) {
  return cuda::CopyAsync(pinned, device_memory, size_bytes, copy_out_.view());
}

Status CudaSlot::End() { return end_.Record(copy_out_.view()); }

Result<BatchTimes> CudaSlot::Times() const {
  BatchTimes times;
  NORM_RETURN_IF_ERROR(Measure(start_, copied_in_, times.copy_in));
  NORM_RETURN_IF_ERROR(Measure(computing_, computed_, times.kernel));
  NORM_RETURN_IF_ERROR(Measure(computed_, end_, times.copy_out));
  return times;
}

Status CudaSlot::Synchronize() const {
  // All three before the first error: none of them may still use the batch's memory.
  const Status copied_in = copy_in_.view().Synchronize();
  const Status computed = compute_.view().Synchronize();
  const Status copied_out = copy_out_.view().Synchronize();
  NORM_RETURN_IF_ERROR(copied_in);
  NORM_RETURN_IF_ERROR(computed);
  return copied_out;
}

}  // namespace norm::server
