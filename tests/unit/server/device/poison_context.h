// Breaks the current CUDA context, as a wild write in a kernel does.
#pragma once

namespace norm::test {

/// Runs a kernel that writes to an address outside every allocation and waits for it. Every later
/// call on the device fails until the process ends. False when the write went unnoticed.
bool PoisonContext();

}  // namespace norm::test
