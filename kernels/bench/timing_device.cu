// Reads 16 bytes a thread and stride; the fill draws four 16-bit uniforms a value and sums them.
#include "bench/any_element.cuh"
#include "bench/timing_device.h"

namespace norm_device {
namespace {

__global__ void ReadAll(const __grid_constant__ ReadAllParams params) {
  const auto* data = static_cast<const uint4*>(params.data);
  uint32_t bits = 0;
  for (int64_t i = GlobalThread(); i < params.bytes / 16; i += GlobalThreads()) {
    const uint4 value = data[i];
    bits ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  // Never so for the buffer's contents, which the compiler cannot know.
  if (bits == 0x12345677u) *params.sink = bits;
}

__device__ double RoughlyNormal(uint64_t counter) {
  uint64_t z = counter;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  float sum = 0.0f;
  for (int k = 0; k < 4; ++k) sum += static_cast<float>((z >> (16 * k)) & 0xffff) * 0x1p-16f - 0.5f;
  return sum * 1.7320508f;  // each uniform has variance 1/12
}

__global__ void Fill(const __grid_constant__ FillParams params) {
  for (int64_t i = GlobalThread(); i < params.count; i += GlobalThreads()) {
    const uint64_t counter = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull +
                             params.seed * 0xD1B54A32D192ED03ull;
    StoreAny(params.tensor, i, params.scale * RoughlyNormal(counter) + params.offset);
  }
}

__global__ void Empty(const __grid_constant__ EmptyParams) {}

}  // namespace

const void* ReadAllKernel() { return reinterpret_cast<const void*>(ReadAll); }
const void* FillKernel() { return reinterpret_cast<const void*>(Fill); }
const void* EmptyKernel() { return reinterpret_cast<const void*>(Empty); }

}  // namespace norm_device
