// Device memory that cases take turns with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "norm/cuda/device_buffer.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// Named pieces of device memory, each as large as the largest use of it so far.
///
/// Ownership: owns the memory; a pointer is valid until its name is asked for with more bytes.
class TensorArena {
 public:
  explicit TensorArena(int device) : device_(device) {}

  int device() const { return device_; }
  /// At least `bytes`, aligned to 256. When the device is full, pieces of other names are freed,
  /// unless they were taken since BeginCase.
  Result<void*> Take(const std::string& name, int64_t bytes);
  /// Forgets which pieces are in use.
  void BeginCase();

 private:
  struct Piece {
    cuda::DeviceBuffer buffer;
    bool in_use = false;
  };
  int device_;
  std::map<std::string, Piece> pieces_;
};

}  // namespace norm::bench
