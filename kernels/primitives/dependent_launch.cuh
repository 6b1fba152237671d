// Dependent launches: a kernel starts while the one before it on the stream ends.
#pragma once

#include <cuda_runtime.h>

namespace norm_device {

/// Lets the next launch of the stream start where it was allowed to overlap this one.
__device__ inline void AllowDependentLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Returns when the launch before this one is complete and its writes are visible.
__device__ inline void AwaitPreviousLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace norm_device
