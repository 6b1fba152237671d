// Stream-ordered copies and fills.
#pragma once

#include <cstddef>

#include "norm/cuda/stream.h"
#include "norm/kernels/status.h"

namespace norm::cuda {

/// Enqueues a copy between any two of device and pinned host memory. Pageable host memory works but
/// may block the caller. Both ranges stay alive until the work is done.
Status CopyAsync(void* destination, const void* source, size_t size_bytes, StreamView stream);

/// Enqueues filling device memory with `value`.
Status FillAsync(void* destination, std::byte value, size_t size_bytes, StreamView stream);

}  // namespace norm::cuda
