#include "server/device/cuda_slot.h"

#include <utility>

#include "norm/cuda/copy.h"

namespace norm::server {
namespace {

/// Adds the time between two completed events to `elapsed`.
Status AddElapsed(const cuda::Event& from, const cuda::Event& to, absl::Duration& elapsed) {
  const Result<float> milliseconds = cuda::ElapsedMs(from, to);
  NORM_RETURN_IF_ERROR(milliseconds.status());
  elapsed += absl::Milliseconds(static_cast<double>(milliseconds.value()));
  return Status();
}

}  // namespace

CudaSlot::CudaSlot(std::vector<cuda::Stream> streams, std::vector<cuda::Event> events,
                   std::vector<KernelEvents> kernels, cuda::Event mapped_end)
    : copy_in_(std::move(streams[0])),
      compute_(std::move(streams[1])),
      copy_out_(std::move(streams[2])),
      start_(std::move(events[0])),
      copied_in_(std::move(events[1])),
      end_(std::move(events[2])),
      kernels_(std::move(kernels)),
      mapped_end_(std::move(mapped_end)) {}

Result<CudaSlot> CudaSlot::Create(int device) {
  std::vector<cuda::Stream> streams;
  for (int i = 0; i < 3; ++i) {
    Result<cuda::Stream> stream = cuda::Stream::Create(device);
    NORM_RETURN_IF_ERROR(stream.status());
    streams.push_back(std::move(stream).value());
  }
  std::vector<cuda::Event> events;
  for (int i = 0; i < 3 + 2 * kMaxSlices; ++i) {
    Result<cuda::Event> event = cuda::Event::Create(device, cuda::EventTiming::kEnabled);
    NORM_RETURN_IF_ERROR(event.status());
    events.push_back(std::move(event).value());
  }
  std::vector<KernelEvents> kernels;
  for (size_t i = 3; i < events.size(); i += 2) {
    kernels.push_back({std::move(events[i]), std::move(events[i + 1])});
  }
  Result<cuda::Event> mapped_end = cuda::Event::Create(device, cuda::EventTiming::kDisabled);
  NORM_RETURN_IF_ERROR(mapped_end.status());
  return CudaSlot(std::move(streams), std::move(events), std::move(kernels),
                  std::move(mapped_end).value());
}

Status CudaSlot::Begin() {
  mapped_ = false;
  slices_ = 0;
  return start_.Record(copy_in_.view());
}

Status CudaSlot::CopyIn(CudaCopyList& copies) { return copies.Enqueue(copy_in_.view()); }

Status CudaSlot::BeginKernel() {
  // A wait is for the record it finds: the next slice may record the event anew.
  NORM_RETURN_IF_ERROR(copied_in_.Record(copy_in_.view()));
  NORM_RETURN_IF_ERROR(compute_.view().WaitFor(copied_in_));
  return kernels_[slices_].begin.Record(compute_.view());
}

Status CudaSlot::EndKernel() {
  const cuda::Event& end = kernels_[slices_].end;
  NORM_RETURN_IF_ERROR(kernels_[slices_++].end.Record(compute_.view()));
  return copy_out_.view().WaitFor(end);
}

Status CudaSlot::CopyOut(void* host, const void* device_memory, size_t size_bytes) {
  return cuda::CopyAsync(host, device_memory, size_bytes, copy_out_.view());
}

Status CudaSlot::End() { return end_.Record(copy_out_.view()); }

Status CudaSlot::BeginMapped(MappedTimes times) {
  mapped_ = true;
  mapped_times_ = times;
  copies_mapped_ = false;
  slices_ = 1;
  return Status();
}

Status CudaSlot::CopyInMapped(CudaCopyList& copies) {
  if (!std::exchange(copies_mapped_, true)) {
    NORM_RETURN_IF_ERROR(start_.Record(compute_.view()));
  }
  return copies.Enqueue(compute_.view());
}

Status CudaSlot::BeginMappedKernel() {
  if (mapped_times_ == MappedTimes::kEvents) {
    return kernels_[0].begin.Record(compute_.view());
  }
  launch_ = std::chrono::steady_clock::now();
  return Status();
}

Status CudaSlot::EndMapped() {
  cuda::Event& end = mapped_times_ == MappedTimes::kEvents ? kernels_[0].end : mapped_end_;
  return end.Record(compute_.view());
}

Result<bool> CudaSlot::IsDone() const {
  if (!mapped_) {
    return end_.IsDone();
  }
  return mapped_times_ == MappedTimes::kEvents ? kernels_[0].end.IsDone() : mapped_end_.IsDone();
}

Result<BatchTimes> CudaSlot::Times() const {
  BatchTimes times;
  if (mapped_ && mapped_times_ == MappedTimes::kClock) {
    times.kernel = absl::FromChrono(std::chrono::steady_clock::now() - launch_);
    return times;
  }
  for (size_t i = 0; i < slices_; ++i) {
    NORM_RETURN_IF_ERROR(AddElapsed(kernels_[i].begin, kernels_[i].end, times.kernel));
  }
  if (mapped_ && copies_mapped_) {
    NORM_RETURN_IF_ERROR(AddElapsed(start_, kernels_[0].begin, times.copy_in));
  }
  if (!mapped_) {
    NORM_RETURN_IF_ERROR(AddElapsed(start_, copied_in_, times.copy_in));
    NORM_RETURN_IF_ERROR(AddElapsed(kernels_[0].end, end_, times.copy_out));
  }
  return times;
}

Status CudaSlot::Synchronize() const {
  // All three before the first error: none of them may still use the batch's memory.
  Status copied_in = copy_in_.view().Synchronize();
  Status computed = compute_.view().Synchronize();
  Status copied_out = copy_out_.view().Synchronize();
  NORM_RETURN_IF_ERROR(copied_in);
  NORM_RETURN_IF_ERROR(computed);
  return copied_out;
}

}  // namespace norm::server
