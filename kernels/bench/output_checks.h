// The host's side of the reference: clears and reads the counters that checking kernels write.
#pragma once

#include "bench/device_case.h"
#include "bench/reference_device.h"
#include "dispatch/launch.h"

namespace norm::bench {

/// Counters in device memory.
class OutputChecks {
 public:
  /// Zeroed counters in `arena`, in order with work on `stream`.
  static Result<OutputChecks> Create(TensorArena& arena, const cuda::Stream& stream);

  norm_device::OutputCheck* data() const { return data_; }
  /// Waits for the stream and sums up. Wrong, too, when no value was checked.
  Result<Verdict> Read() const;

 private:
  OutputChecks(norm_device::OutputCheck* data, cuda::StreamView stream)
      : data_(data), stream_(stream) {}
  norm_device::OutputCheck* data_;
  cuda::StreamView stream_;
};

/// Enqueues a reference kernel of 256 threads a block.
template <typename Params>
Status EnqueueReference(const void* kernel, int64_t blocks_x, int64_t blocks_y,
                        const Params& params, const cuda::Stream& stream) {
  internal::LaunchConfig config;
  config.blocks_x = blocks_x;
  config.blocks_y = blocks_y;
  config.threads_x = 256;
  return internal::Launch(kernel, config, params, stream.view().handle());
}

}  // namespace norm::bench
