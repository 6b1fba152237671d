// Pool memory of the CUDA backend.
#pragma once

#include "server/device/buffer_pool.h"

namespace norm::server {

/// Page-locked host memory, usable with every device of the process.
MemorySource PinnedMemory();
/// Memory of one device.
MemorySource DeviceMemory(int device);

}  // namespace norm::server
