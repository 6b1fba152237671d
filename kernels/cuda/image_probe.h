// A kernel of this build whose loading tells whether a device has an image here.
#pragma once

#include <cuda_runtime_api.h>

// Not in namespace norm: nvcc declares a function ::norm(int, const double*), so no .cu file can
// open that namespace or include a header that does. Device code lives in norm_device and hands
// kernels to host code as pointers.
namespace norm_device {

/// cudaSuccess when the current device can load this build's kernels.
cudaError_t ProbeImage();

}  // namespace norm_device
