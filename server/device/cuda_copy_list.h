// Several copies that are enqueued together.
#pragma once

#include <cstddef>
#include <vector>

#include "norm/cuda/stream.h"
#include "norm/kernels/status.h"

namespace norm::server {

/// Copies between device and page-locked host memory that do not overlap. Keeps its memory when
/// cleared.
///
/// Enqueue: they start when the work before them on the stream is done, in any order. One call of
///          the driver for all: 1 MiB in 16 runs is on the device after 41 us instead of 70 by a
///          call for each, in one run after 28 (H200 machine).
/// Threads: one at a time.
class CudaCopyList {
 public:
  void Clear();
  void Add(void* to, const void* from, size_t size_bytes);
  Status Enqueue(cuda::StreamView stream);

 private:
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> sizes_;
};

}  // namespace norm::server
