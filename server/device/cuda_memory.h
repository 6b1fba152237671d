// Pool memory of the CUDA backend.
#pragma once

#include "server/device/buffer_pool.h"

namespace norm::server {

/// Page-locked host memory, mapped for the kernels of every device of the process at its own address.
MemorySource PinnedMemory();
/// Memory of one device.
MemorySource DeviceMemory(int device);

}  // namespace norm::server
