// The streams and events that carry one batch at a time through a GPU.
#pragma once

#include <cstddef>

#include "norm/cuda/event.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"
#include "server/device/batch_record.h"

namespace norm::server {

/// Three streams, so that one slot's copies run beside the kernels and the opposite copies of
/// others. Calls go in the order of the declarations; each stage starts on the device when the one
/// before is done.
///
/// Threads: one at a time; its device must be current. None of the calls but Synchronize blocks.
class CudaSlot {
 public:
  static Result<CudaSlot> Create(int device);

  Status BeginCopyIn();
  /// Any number of times.
  Status CopyIn(void* device_memory, const void* pinned, size_t size_bytes);
  Status BeginCompute();
  StreamHandle compute() const { return compute_.view().handle(); }
  Status BeginCopyOut();
  Status CopyOut(void* pinned, const void* device_memory, size_t size_bytes);
  Status End();

  /// Whether everything up to End is done; an error of that work.
  Result<bool> IsDone() const { return end_.IsDone(); }
  /// Of a slot that is done.
  Result<BatchTimes> Times() const;
  /// Waits for whatever was enqueued.
  Status Synchronize() const;

 private:
  CudaSlot(cuda::Stream copy_in, cuda::Stream compute, cuda::Stream copy_out, cuda::Event start,
           cuda::Event copied_in, cuda::Event computing, cuda::Event computed, cuda::Event end);

  cuda::Stream copy_in_;
  cuda::Stream compute_;
  cuda::Stream copy_out_;
  cuda::Event start_;
  cuda::Event copied_in_;
  cuda::Event computing_;
  cuda::Event computed_;
  cuda::Event end_;
};

}  // namespace norm::server
