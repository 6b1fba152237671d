// Kernels that timing needs: a cold cache, random inputs, an empty launch.
#pragma once

#include <cstdint>

#include "bench/device_tensor.h"

namespace norm_device {

/// Reads all of `data`, so that the caches hold clean lines of it and of nothing else.
struct ReadAllParams {
  const void* data;
  int64_t bytes;  // a multiple of 16
  uint32_t* sink;
};
const void* ReadAllKernel();

/// Roughly normal values from a counter-based generator: scale * normal + offset.
struct FillParams {
  AnyTensor tensor;
  int64_t count;
  uint64_t seed;
  double scale;
  double offset;
};
const void* FillKernel();

struct EmptyParams {
  int unused;
};
const void* EmptyKernel();

}  // namespace norm_device
