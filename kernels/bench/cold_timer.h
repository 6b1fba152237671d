// Times work on a GPU with cold caches: the rule of every number in the result file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "norm/cuda/device_buffer.h"
#include "norm/cuda/device_info.h"
#include "norm/cuda/event.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// Enqueues the work to be timed.
using Enqueue = std::function<Status(cuda::StreamView)>;

/// One sample: 256 MiB are read, which leaves clean lines of another buffer in the caches; then an
/// event, the work with all its launches, an event. The result is the median of the samples, after
/// one run that is not timed.
///
/// Ownership:  owns its stream, events and buffers on `device`.
class ColdTimer {
 public:
  static Result<ColdTimer> Create(int device, int samples);

  const cuda::Stream& stream() const { return stream_; }
  int device() const { return stream_.device(); }

  /// Keeps the device busy until its clocks have settled.
  Status WarmUp();
  Result<double> MedianUs(const Enqueue& work);
  /// A device-to-device copy that reads and writes `bytes` in total, by the same rule. Measured
  /// once for each size.
  Result<double> CopyUs(int64_t bytes);
  /// Reads plus writes a second of a copy that moves 4 GiB, or what fits.
  Result<double> CopyGbs();
  /// An empty kernel of one block.
  Result<double> LaunchUs();
  /// One of `count` equal pieces of work in a captured graph: median over replays, caches warm.
  Result<double> GraphUs(const Enqueue& work, int count);

 private:
  ColdTimer(cuda::Stream stream, cuda::Event begin, cuda::Event end, cuda::DeviceBuffer flushed,
            cuda::DeviceBuffer sink, int samples, int flush_blocks);
  Status Flush();

  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::DeviceBuffer flushed_;
  cuda::DeviceBuffer sink_;
  int samples_;
  int flush_blocks_;
  std::map<int64_t, double> copies_;
};

/// Enqueues an empty kernel of one block.
Status EnqueueEmptyKernel(cuda::StreamView stream);

}  // namespace norm::bench
