// Makes a device current for a scope.
#pragma once

#include "norm/kernels/status.h"

namespace norm::cuda {

/// Makes `device` current on this thread and the previous device current again on destruction.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  /// Not OK when the device could not be made current.
  const Status& status() const { return status_; }

 private:
  int previous_ = -1;
  bool restore_ = false;
  Status status_;
};

}  // namespace norm::cuda
