// The device code of one-byte formats, value by value. (Device code keeps out of namespace norm: the
// CUDA headers declare a function of that name.)
#pragma once

#include <cstdint>
#include <vector>

namespace norm_device {

/// Codes of the same values.
struct F8Codes {
  bool ok = false;                 // every CUDA call succeeded
  std::vector<uint8_t> quantized;  // as the kernels encode them on this device
  std::vector<uint8_t> by_bits;    // as on a device without the instruction
};

/// Encodes `values`, a multiple of 4, on the current device.
F8Codes EncodeF8(const std::vector<float>& values);

}  // namespace norm_device
