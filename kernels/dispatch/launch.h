// The only launch statement of the library.
#pragma once

#include "dispatch/launch_config.h"
#include "norm/kernels/result.h"
#include "norm/kernels/workspace.h"

namespace norm::internal {

/// Enqueues `kernel`, a __global__ function of one parameter that `params` points to.
Status LaunchKernel(const void* kernel, const LaunchConfig& config, const void* params,
                    StreamHandle stream);

/// As above, with the kernel's parameter by value.
template <typename Params>
Status Launch(const void* kernel, const LaunchConfig& config, const Params& params,
              StreamHandle stream) {
  return LaunchKernel(kernel, config, &params, stream);
}

/// Traits of the current device.
Result<DeviceTraits> CurrentDeviceTraits();

}  // namespace norm::internal
