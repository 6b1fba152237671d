// A kernel that takes any amount of dynamic shared memory.
#pragma once

namespace norm_device {

/// One parameter, an int that it does not read; writes nothing.
const void* SharedMemoryProbe();

}  // namespace norm_device
