// A CUDA stream: its owner and its borrower.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "norm/kernels/result.h"
#include "norm/kernels/workspace.h"

namespace norm::cuda {

class Event;

/// Borrows a stream. Cannot be made from nullptr or 0: nothing here runs on a default stream.
class StreamView {
 public:
  explicit StreamView(cudaStream_t stream) : stream_(stream) {}
  StreamView(std::nullptr_t) = delete;  // NOLINT: deleted
  StreamView(int) = delete;             // NOLINT: deleted

  cudaStream_t get() const { return stream_; }
  /// The same stream as the kernels library takes it.
  StreamHandle handle() const { return stream_; }

  /// Blocks this thread until the work enqueued so far is done; reports errors of that work.
  Status Synchronize() const;
  /// Whether the work enqueued so far is done; never blocks. Reports errors of that work.
  Result<bool> IsIdle() const;
  /// Work enqueued from now on waits, on the device, for the last record of `event`.
  Status WaitFor(const Event& event) const;

 private:
  cudaStream_t stream_;
};

enum class StreamPriority { kDefault, kHigh };

/// Owns a stream that does not synchronize with the legacy default stream. A moved-from Stream is
/// closed.
///
/// Ownership:  Close() (or the destructor, which drops the status) destroys the stream; work
/// already enqueued still runs.
class Stream {
 public:
  static Result<Stream> Create(int device, StreamPriority priority = StreamPriority::kDefault);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  StreamView view() const { return StreamView(stream_); }
  int device() const { return device_; }
  /// Idempotent.
  Status Close();

 private:
  Stream(cudaStream_t stream, int device) : stream_(stream), device_(device) {}
  cudaStream_t stream_ = nullptr;
  int device_ = -1;
};

}  // namespace norm::cuda
