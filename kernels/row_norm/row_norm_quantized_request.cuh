// What is the same for all rows of a request whose y is quantized, and arithmetic of moderate numbers.
#pragma once

#include <cuda_runtime.h>

#include "primitives/byte_formats.cuh"
#include "row_norm/row_norm_quantized_device.h"

namespace norm_device {

/// Far enough from the ends of f32 that products of a few such numbers are normal.
__device__ inline bool IsModerate(float magnitude) {
  return magnitude > 0x1p-30F && magnitude < 0x1p30F;
}

/// a / b of moderate numbers; exact where the quotient is.
__device__ inline float ModerateQuotient(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  const float near = a * inverse;
  return fmaf(fmaf(-near, b, a), inverse, near);
}

/// 1 / sqrt(value) of a moderate number; exact for powers of 4.
__device__ inline float ModerateReciprocalRoot(float value) {
  float near;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(value));
  return fmaf(0.5F * near, fmaf(-value * near, near, 1.0F), near);
}

/// What is the same for all rows of a request.
struct QuantizedRequest {
  float size;
  float inverse_size;
  float eps;
  float largest_code;
  bool is_int8;
  bool scales_rows;

  __device__ explicit QuantizedRequest(const RowForwardParams& p)
      : size(static_cast<float>(p.hidden_size)),
        inverse_size(static_cast<float>(p.inverse_size)),
        eps(static_cast<float>(p.eps)),
        largest_code(p.output == RowOutput::kInt8PerRow ? Int8::kLargest : F8E4M3::kLargest),
        is_int8(p.output == RowOutput::kInt8PerRow),
        scales_rows(p.output != RowOutput::kF8E4M3) {}
};

/// Requests whose rows may take the short way.
__device__ inline bool IsModerate(const RowForwardParams& p) {
  return p.eps < 0x1p30 && !p.round_normalized &&
         (p.output != RowOutput::kF8E4M3 || IsModerate(p.inverse_y_scale));
}

}  // namespace norm_device
