// The streams and events that carry one batch at a time through a GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "norm/cuda/event.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"
#include "server/device/batch_record.h"
#include "server/device/cuda_copy_list.h"

namespace norm::server {

/// Three streams, so that one slot's copies run beside the kernels and the opposite copies of
/// others, and of its own when a batch comes in slices.
///
/// Staged:  Begin, then for each slice CopyIn any number of times, BeginKernel, work on compute(),
///          EndKernel, CopyOut any number of times; then End. Each step of a slice starts on the
///          device when the one before is done.
/// Mapped:  BeginMapped, CopyInMapped where kernels do not read host memory, BeginMappedKernel, work
///          on compute(), which writes host memory, EndMapped. All on one stream. Without copies its
///          times may come from this host's clock: the end is seen sooner.
/// Threads: one at a time; its device must be current. None of the calls but Synchronize blocks.
class CudaSlot {
 public:
  /// What tells how long a mapped batch's kernels took: events that carry the device's time around
  /// them, or from the launch until Times is asked.
  enum class MappedTimes : uint8_t { kEvents, kClock };

  /// Slices of one batch.
  static constexpr int kMaxSlices = 32;

  static Result<CudaSlot> Create(int device);

  Status Begin();
  Status CopyIn(CudaCopyList& copies);
  Status BeginKernel();
  StreamHandle compute() const { return compute_.view().handle(); }
  Status EndKernel();
  Status CopyOut(void* host, const void* device_memory, size_t size_bytes);
  Status End();

  Status BeginMapped(MappedTimes times);
  Status CopyInMapped(CudaCopyList& copies);
  Status BeginMappedKernel();
  Status EndMapped();

  /// Whether everything up to End or EndMapped is done; an error of that work.
  Result<bool> IsDone() const;
  /// Of a slot that is done. The copy times of slices run from the first to the last, beside each
  /// other and the kernels, whose times are added.
  Result<BatchTimes> Times() const;
  /// Waits for whatever was enqueued.
  Status Synchronize() const;

 private:
  struct KernelEvents {
    cuda::Event begin;
    cuda::Event end;
  };

  CudaSlot(std::vector<cuda::Stream> streams, std::vector<cuda::Event> events,
           std::vector<KernelEvents> kernels, cuda::Event mapped_end);

  cuda::Stream copy_in_;
  cuda::Stream compute_;
  cuda::Stream copy_out_;
  cuda::Event start_;
  cuda::Event copied_in_;  // the last slice so far
  cuda::Event end_;
  std::vector<KernelEvents> kernels_;  // by slice
  size_t slices_ = 0;                  // of the batch so far
  bool mapped_ = false;
  bool copies_mapped_ = false;  // a mapped batch with CopyInMapped
  MappedTimes mapped_times_ = MappedTimes::kEvents;
  cuda::Event mapped_end_;                        // of kClock: without a time
  std::chrono::steady_clock::time_point launch_;  // likewise
};

}  // namespace norm::server
