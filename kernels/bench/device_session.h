// A device that is ready to measure: checked, timed, with its report begun.
#pragma once

#include <string>

#include "bench/cold_timer.h"
#include "bench/commands.h"
#include "bench/report.h"
#include "bench/tensor_arena.h"
#include "bench/traffic.h"
#include "norm/cuda/device_info.h"

namespace norm::bench {

struct DeviceSession {
  cuda::DeviceInfo info;
  ColdTimer timer;
  TensorArena arena;
  DeviceCeilings ceilings;  // measured, but for f32_tflops
  double peak_gbs = 0.0;    // of the memory, from its clock and bus width; 0 when not known
  double clock_ghz = 0.0;   // of the multiprocessors, the highest

  /// Refuses a device for which this build has no machine code ("built for sm_..., this device is
  /// sm_..."). Prints one line about the device.
  static Result<DeviceSession> Open(const MeasureOptions& options);

  /// A report without rows.
  Report NewReport(const MeasureOptions& options) const;
};

}  // namespace norm::bench
