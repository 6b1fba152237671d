// What host code and the NCHW inference kernel agree on. Standard library only.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring.h"

namespace norm_device {

inline constexpr int kInferenceThreads = 256;
inline constexpr int kInferenceGranules = 4;     // of 16 bytes, of a thread
inline constexpr int kInferenceBlocksPerSm = 4;  // that registers are kept free for
inline constexpr int kInferenceBlockGranules = kInferenceThreads * kInferenceGranules;

struct InferenceSegment {
  const void* x;
  void* y;
  const void* weight;
  const void* bias;
  const float* running_mean;
  const float* running_var;
  float* rstd;
  double eps;
  int64_t elements;
  int64_t first_block;
};

/// Requests of equal channels, spatial size and dtypes.
struct InferenceParams {
  InferenceSegment segments[kRingSegments];
  int32_t segment_count;
  uint32_t channels;
  uint32_t spatial;              // at least the elements of a granule
  uint32_t short_reciprocal;     // floor((2^32 - 1) / spatial)
  uint64_t spatial_reciprocal;   // floor((2^64 - 1) / spatial)
  uint64_t channels_reciprocal;  // floor((2^64 - 1) / channels)
  bool weight_like_x;            // else f32
};

/// `whole_planes`: a plane is a whole number of granules. `aligned`: x and y are multiples of 16.
template <typename X>
const void* PlaneInferenceKernel(bool whole_planes, bool aligned);

}  // namespace norm_device
