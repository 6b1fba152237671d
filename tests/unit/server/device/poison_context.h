// Breaks the current CUDA context, as a wild write in a kernel does. (Device code keeps out of
// namespace norm: the CUDA headers declare a function of that name.)
#pragma once

namespace norm_device {

/// Runs a kernel that writes to an address outside every allocation and waits for it. Every later
/// call on the device fails until the process ends. False when the write went unnoticed.
bool PoisonContext();

}  // namespace norm_device
